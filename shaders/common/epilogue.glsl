// The epilogue: an expression of a result's number and of operands e1, e2, ..., which is applied before the
// result is stored. The host generates the declarations of the operands, in buffers or textures; the
// expression as a function of floats or of vec4, with uniforms for its constants; and the call of that
// function. A kernel calls one of the two forms.
//     at: index of the number, or of the vec4, in the result's memory.
//     channel: of the result, or a matrix's column; quad: index of four of these.
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
