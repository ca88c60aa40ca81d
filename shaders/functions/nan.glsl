#include "common/nan.glsl"
