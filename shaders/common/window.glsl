// The window of a convolution and its steps. The op defines them; 3 x 3 serves to compile a file alone.
#ifndef KERNEL_H
#define KERNEL_H 3
#define KERNEL_W 3
#define STRIDE_H 1
#define STRIDE_W 1
#define PADDING_TOP 1
#define PADDING_LEFT 1
#define DILATION_H 1
#define DILATION_W 1
#endif
