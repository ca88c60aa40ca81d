// The gradient of a pixel: the sum over the windows that cover it, for kernels of any layout. These
// define NUMBER (float, or a vec4 of four channels) and DY(i), X(i) and Y(i), elements of a plane.
#include "pool2d/windows.glsl"
uniform int h, w, oh, ow;

// The first and the last window that may cover a row or a column.
#if SHARED
#define FIRST_DOWN(row) ((row) * oh / h)
#define LAST_DOWN(row) ((((row) + 1) * oh - 1) / h)
#define FIRST_ACROSS(column) ((column) * ow / w)
#define LAST_ACROSS(column) ((((column) + 1) * ow - 1) / w)
#else
#define REACH_H ((KERNEL_H - 1) * DILATION_H)
#define REACH_W ((KERNEL_W - 1) * DILATION_W)
#define FIRST_DOWN(row) (max((row) + PADDING_TOP - REACH_H + STRIDE_H - 1, 0) / STRIDE_H)
#define LAST_DOWN(row) min(((row) + PADDING_TOP) / STRIDE_H, oh - 1)
#define FIRST_ACROSS(column) (max((column) + PADDING_LEFT - REACH_W + STRIDE_W - 1, 0) / STRIDE_W)
#define LAST_ACROSS(column) min(((column) + PADDING_LEFT) / STRIDE_W, ow - 1)
#endif

#if MODE == 0
// 1 where both are equal or both NaN, else 0.
float same(float a, float b) {
    return is_nan(a) ? float(is_nan(b)) : float(!is_nan(b) && a == b);
}

// 1 where `other`, of another pixel of the window, is preferred as the maximum: of equal numbers the
// earlier one, of NaN the later one.
float chosen_before(float other, float x_value, bool later) {
    return is_nan(x_value) == later ? same(other, x_value) : 0.0;
}

float select(float value, float share) {
    return share > 0.0 ? value : 0.0;
}

bool any_nan(float v) {
    return is_nan(v);
}

// 1 where both are equal, else 0; neither is NaN.
float equal_number(float a, float b) {
    return float(a == b);
}

vec4 equal_number(vec4 a, vec4 b) {
    return vec4(equal(a, b));
}

vec4 same(vec4 a, vec4 b) {
    return vec4(same(a.x, b.x), same(a.y, b.y), same(a.z, b.z), same(a.w, b.w));
}

vec4 chosen_before(vec4 other, vec4 x_value, bool later) {
    return vec4(chosen_before(other.x, x_value.x, later), chosen_before(other.y, x_value.y, later),
                chosen_before(other.z, x_value.z, later), chosen_before(other.w, x_value.w, later));
}

vec4 select(vec4 value, vec4 share) {
    return vec4(select(value.x, share.x), select(value.y, share.y), select(value.z, share.z),
                select(value.w, share.w));
}

bool any_nan(vec4 v) {
    return is_nan(v.x) || is_nan(v.y) || is_nan(v.z) || is_nan(v.w);
}

// `share` where the maximum of the window is that of `row`, `column`, as no pixel of the same number is
// preferred; else 0.
NUMBER chosen(NUMBER share, NUMBER x_value, int row, int column, int x_plane, int top, int left,
              int height, int width) {
    // Where a window has NaN, that is its maximum, and `share` is 0 for other numbers. So for a number
    // only earlier pixels of the same number matter.
    if (!any_nan(x_value)) {
        for (int iy = top; iy <= row; iy += DILATION_H) {
            if (iy < 0) continue;
            int end = iy < row ? w : column;
            for (int kx = 0; kx < width; ++kx) {
                int ix = left + kx * DILATION_W;
                if (ix >= 0 && ix < end) share *= 1.0 - equal_number(X(x_plane + iy * w + ix), x_value);
            }
        }
        return share;
    }
    int end = min(top + (height - 1) * DILATION_H, h - 1);
    for (int iy = top; iy <= end; iy += DILATION_H) {
        if (iy < 0) continue;
        for (int kx = 0; kx < width; ++kx) {
            int ix = left + kx * DILATION_W;
            if (ix < 0 || ix >= w || (iy == row && ix == column)) continue;
            bool later = iy > row || (iy == row && ix > column);
            share *= 1.0 - chosen_before(X(x_plane + iy * w + ix), x_value, later);
        }
        if (share == NUMBER(0.0)) break;
    }
    return share;
}
#endif

// The gradient of the pixel `row`, `column`. x_plane, dy_plane, y_plane: offsets of its planes.
NUMBER gathered(int row, int column, int dy_plane, int x_plane, int y_plane) {
    NUMBER sum = NUMBER(0.0);
#if MODE == 0
    NUMBER x_value = X(x_plane + row * w + column);
#endif
    int last_down = LAST_DOWN(row), last_across = LAST_ACROSS(column);
    for (int down = FIRST_DOWN(row); down <= last_down; ++down) {
        int top = WINDOW_TOP(down), height = WINDOW_HEIGHT(down);
#if DILATION_H > 1
        if ((row - top) % DILATION_H != 0) continue;
#endif
        for (int across = FIRST_ACROSS(column); across <= last_across; ++across) {
            int left = WINDOW_LEFT(across), width = WINDOW_WIDTH(across);
#if DILATION_W > 1
            if ((column - left) % DILATION_W != 0) continue;
#endif
            int at = down * ow + across;
#if MODE == 0
            NUMBER share = same(x_value, Y(y_plane + at));
            if (share == NUMBER(0.0)) continue;
            share = chosen(share, x_value, row, column, x_plane, top, left, height, width);
            sum += select(DY(dy_plane + at), share);
#else
            sum += DY(dy_plane + at) / places(top, left, height, width, h, w);
#endif
        }
    }
    return sum;
}
