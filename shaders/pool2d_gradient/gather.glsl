// What a place of an image gets of the windows that cover it, for kernels of any layout. They define
// NUMBER (float, or a vec4 of four channels) and DY(i), X(i) and Y(i), which read a plane's numbers.
#include "pool2d/windows.glsl"
uniform int h, w, oh, ow;

// The first and the last window that may cover a row, a column, and which row or column of a window
// it is, times the dilation.
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
// 1 where both are the same number, or both NaN.
float same(float a, float b) {
    return is_nan(a) ? float(is_nan(b)) : float(!is_nan(b) && a == b);
}

// 1 where `other`, of another place in the window, is chosen before `mine`: the same number where it
// stands earlier, NaN before NaN where it stands later.
float chosen_before(float other, float mine, bool later) {
    return is_nan(mine) == later ? same(other, mine) : 0.0;
}

float only(float value, float has) {
    return has > 0.0 ? value : 0.0;
}

bool any_nan(float v) {
    return is_nan(v);
}

// 1 where both are the same number, of which neither is NaN.
float equal_number(float a, float b) {
    return float(a == b);
}

vec4 equal_number(vec4 a, vec4 b) {
    return vec4(equal(a, b));
}

vec4 same(vec4 a, vec4 b) {
    return vec4(same(a.x, b.x), same(a.y, b.y), same(a.z, b.z), same(a.w, b.w));
}

vec4 chosen_before(vec4 other, vec4 mine, bool later) {
    return vec4(chosen_before(other.x, mine.x, later), chosen_before(other.y, mine.y, later),
                chosen_before(other.z, mine.z, later), chosen_before(other.w, mine.w, later));
}

vec4 only(vec4 value, vec4 has) {
    return vec4(only(value.x, has.x), only(value.y, has.y), only(value.z, has.z),
                only(value.w, has.w));
}

bool any_nan(vec4 v) {
    return is_nan(v.x) || is_nan(v.y) || is_nan(v.z) || is_nan(v.w);
}

// `found` where the window's greatest number is taken from `row`, `column`: nobody who has it, too, is
// chosen before; else 0.
NUMBER chosen(NUMBER found, NUMBER mine, int row, int column, int x_plane, int top, int left,
              int height, int width) {
    // Where a window has NaN, that is chosen: `found` is 0 for any other number. So without NaN only
    // earlier places matter, if they have the same number.
    if (!any_nan(mine)) {
        for (int iy = top; iy <= row; iy += DILATION_H) {
            if (iy < 0) continue;
            int end = iy < row ? w : column;
            for (int kx = 0; kx < width; ++kx) {
                int ix = left + kx * DILATION_W;
                if (ix >= 0 && ix < end) found *= 1.0 - equal_number(X(x_plane + iy * w + ix), mine);
            }
        }
        return found;
    }
    int end = min(top + (height - 1) * DILATION_H, h - 1);
    for (int iy = top; iy <= end; iy += DILATION_H) {
        if (iy < 0) continue;
        for (int kx = 0; kx < width; ++kx) {
            int ix = left + kx * DILATION_W;
            if (ix < 0 || ix >= w || (iy == row && ix == column)) continue;
            bool later = iy > row || (iy == row && ix > column);
            found *= 1.0 - chosen_before(X(x_plane + iy * w + ix), mine, later);
        }
        if (found == NUMBER(0.0)) break;
    }
    return found;
}
#endif

// x_plane, dy_plane, y_plane: where the planes of the channel, or of the four, begin.
NUMBER gathered(int row, int column, int dy_plane, int x_plane, int y_plane) {
    NUMBER sum = NUMBER(0.0);
#if MODE == 0
    NUMBER mine = X(x_plane + row * w + column);
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
            NUMBER has = same(mine, Y(y_plane + at));
            if (has == NUMBER(0.0)) continue;
            has = chosen(has, mine, row, column, x_plane, top, left, height, width);
            sum += only(DY(dy_plane + at), has);
#else
            sum += DY(dy_plane + at) / places(top, left, height, width, h, w);
#endif
        }
    }
    return sum;
}
