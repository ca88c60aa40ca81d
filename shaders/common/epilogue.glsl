// What is done to a result's numbers before they are stored: an expression of them and of operands
// e1, e2, ... The host writes the operands, as buffers or samplers with the uniforms of the
// expression's numbers, how each is fetched, and the expression; kernels call one of the two forms.
//     at: where in the result's memory the number, or the vec4, goes.
//     channel: of the result, a matrix's column; quad: four of these.
#include <epilogue operands>

float epilogue_of(EPILOGUE_ARGUMENTS) {
#include <epilogue expression>
}

#if EPILOGUE_QUADS
vec4 epilogue(vec4 value, int at, int quad) {
#include <epilogue fetches>
    return vec4(epilogue_of(EPILOGUE_NUMBERS(x)), epilogue_of(EPILOGUE_NUMBERS(y)),
                epilogue_of(EPILOGUE_NUMBERS(z)), epilogue_of(EPILOGUE_NUMBERS(w)));
}
#else
float epilogue(float value, int at, int channel) {
#include <epilogue fetches>
    return epilogue_of(EPILOGUE_NUMBERS);
}
#endif
