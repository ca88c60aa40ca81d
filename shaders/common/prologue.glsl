// What is done to x's numbers before they are multiplied: an expression of them and of operands p1,
// p2, ... The host writes the operands; the expression as a function of four numbers each, with the
// uniforms of the numbers in it; and the call of that function. Without one `prologue` is its value.
//     quad: which four of the channels, a matrix's columns; image: of x.
// PROLOGUE_CHANNELS is what the kernel calls the number of channels.
#define HAS_PROLOGUE 1
#include <prologue operands>
#include <prologue function>

vec4 prologue(vec4 value, int quad, int image) {
#include <prologue call>
}
