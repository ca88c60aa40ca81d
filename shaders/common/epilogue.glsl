// What is done to a result's numbers before they are stored: an expression of them and of operands
// e1, e2, ... The host writes the operands, in buffers or textures; the expression as a function of
// numbers or of four each, with the uniforms of the numbers in it; and the call of that function.
// Kernels call one of the two forms.
//     at: where in the result's memory the number, or the vec4, goes.
//     channel: of the result, a matrix's column; quad: four of these.
#include <epilogue operands>
#include <epilogue function>

#if EPILOGUE_QUADS
vec4 epilogue(vec4 value, int at, int quad) {
#include <epilogue call>
}
#else
float epilogue(float value, int at, int channel) {
#include <epilogue call>
}
#endif
