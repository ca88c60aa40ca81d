// The prologue: an expression of four numbers of x and of operands p1, p2, ..., which is applied before x is
// multiplied. The host generates the declarations of the operands; the expression as a function of vec4, with
// uniforms for its constants; and the call of that function. Without a prologue the macro `prologue` is its
// first argument.
//     quad: index of four channels, or of four columns of a matrix; image: of x.
// PROLOGUE_CHANNELS: the kernel's name for the number of channels.
#define HAS_PROLOGUE 1
#include <prologue operands>
#include <prologue function>

vec4 prologue(vec4 value, int quad, int image) {
#include <prologue call>
}
