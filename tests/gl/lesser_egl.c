/* An EGL that hands on to the system's and lacks what LESSER_EGL lists: extensions by name, and
 *   1.5        it is EGL 1.4: a context's minor version is no attribute
 *   es3        no config has EGL_OPENGL_ES3_BIT
 *   pbuffer    no config has EGL_PBUFFER_BIT
 *   es         eglBindAPI knows no OpenGL ES
 *   functions  eglGetProcAddress knows extensions only
 *   display    there is no default display
 *
 * With TWO_CUDA in the environment it has two devices, both the system's first, that CUDA calls 1
 * and 0.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void *P;
typedef unsigned U;

static int wrong; /* an EGL error of our own */

static P real(const char *name) {
    static P library;
    if (!library) library = dlopen("libEGL.so.1", RTLD_NOW | RTLD_LOCAL);
    return dlsym(library, name);
}

static int lacks(const char *what, size_t length) {
    const char *at = getenv("LESSER_EGL");
    while (at && *at) {
        size_t word = strcspn(at, " ");
        if (word == length && !strncmp(at, what, length)) return 1;
        at += word + (at[word] == ' ');
    }
    return 0;
}

#define LACKS(what) lacks(what, sizeof(what) - 1)
#define OURS(name, result, ...) ((result (*)(__VA_ARGS__))real(name))

int eglGetError(void) {
    int was = wrong;
    wrong = 0;
    return was ? was : OURS("eglGetError", int, void)();
}

U eglBindAPI(U api) {
    if (api == 0x30A0 && LACKS("es")) return wrong = 0x300C, 0;
    return OURS("eglBindAPI", U, U)(api);
}

static int value(const int *list, int key) { /* of an attribute list, 0 if it is not there */
    for (; list && *list != 0x3038; list += 2)
        if (*list == key) return list[1];
    return 0;
}

U eglChooseConfig(P display, const int *wanted, P *configs, int size, int *count) {
    int old = LACKS("1.5") && LACKS("EGL_KHR_create_context");
    if (((old || LACKS("es3")) && value(wanted, 0x3040) & 0x40) || (LACKS("pbuffer") && value(wanted, 0x3033) & 1))
        return *count = 0, 1;
    return OURS("eglChooseConfig", U, P, const int *, P *, int, int *)(display, wanted, configs,
                                                                       size, count);
}

#ifndef NO_CREATE_CONTEXT
P eglCreateContext(P display, P config, P shared, const int *list) {
    if (LACKS("1.5") && LACKS("EGL_KHR_create_context") && value(list, 0x30FB))
        return wrong = 0x3004, NULL;
    if (!config && LACKS("EGL_KHR_no_config_context")) return wrong = 0x3005, NULL;
    return OURS("eglCreateContext", P, P, P, P, const int *)(display, config, shared, list);
}
#endif

U eglMakeCurrent(P display, P draw, P read, P context) {
    if (context && !draw && LACKS("EGL_KHR_surfaceless_context")) return wrong = 0x3009, 0;
    return OURS("eglMakeCurrent", U, P, P, P, P)(display, draw, read, context);
}

U eglInitialize(P display, int *major, int *minor) {
    U done = OURS("eglInitialize", U, P, int *, int *)(display, major, minor);
    if (minor && LACKS("1.5")) *minor = 4;
    return done;
}

const char *eglQueryString(P display, int name) {
    static char text[1 << 14];
    const char *at = OURS("eglQueryString", const char *, P, int)(display, name);
    if (name == 0x3054 && LACKS("1.5")) return "1.4 lesser";
    if (name != 0x3055 || !at) return at;
    for (text[0] = 0; *at;) {
        size_t word = strcspn(at, " ");
        if (!lacks(at, word)) strcat(strncat(text, at, word), " ");
        at += word + (at[word] == ' ');
    }
    return text;
}

static char two[2]; /* handles of devices */

static U devices(int size, P *handles, int *count) {
    (void)size;
    handles[0] = two, handles[1] = two + 1, *count = 2;
    return 1;
}

static P system_device(P handle) {
    P handles[8];
    int count = 0;
    if (handle != two && handle != two + 1) return handle;
    P query = OURS("eglGetProcAddress", P, const char *)("eglQueryDevicesEXT");
    ((U(*)(int, P *, int *))query)(8, handles, &count);
    return count ? handles[0] : NULL;
}

static P display_of(U platform, P native, const int *list) {
    P get = OURS("eglGetProcAddress", P, const char *)("eglGetPlatformDisplayEXT");
    return ((P(*)(U, P, const int *))get)(platform, system_device(native), list);
}

static const char *string_of(P handle, int name) {
    (void)handle;
    return name == 0x3055 ? "EGL_EXT_device_drm EGL_NV_device_cuda" : NULL;
}

static U attribute_of(P handle, int name, long *value) {
    if (name != 0x323A) return 0;
    *value = handle == two ? 1 : 0;
    return 1;
}

P eglGetProcAddress(const char *name) {
    if (getenv("TWO_CUDA")) {
        if (!strcmp(name, "eglQueryDevicesEXT")) return (P)devices;
        if (!strcmp(name, "eglGetPlatformDisplayEXT")) return (P)display_of;
        if (!strcmp(name, "eglQueryDeviceStringEXT")) return (P)string_of;
        if (!strcmp(name, "eglQueryDeviceAttribEXT")) return (P)attribute_of;
    }
    size_t length = strlen(name);
    if (LACKS("functions") && strcmp(name + length - 3, "EXT")) return NULL;
    return OURS("eglGetProcAddress", P, const char *)(name);
}

P eglGetDisplay(P native) {
    return LACKS("display") ? NULL : OURS("eglGetDisplay", P, P)(native);
}

P eglCreatePbufferSurface(P display, P config, const int *list) {
    return OURS("eglCreatePbufferSurface", P, P, P, const int *)(display, config, list);
}

U eglDestroyContext(P display, P it) { return OURS("eglDestroyContext", U, P, P)(display, it); }
U eglDestroySurface(P display, P it) { return OURS("eglDestroySurface", U, P, P)(display, it); }
P eglGetCurrentContext(void) { return OURS("eglGetCurrentContext", P, void)(); }
P eglGetCurrentDisplay(void) { return OURS("eglGetCurrentDisplay", P, void)(); }
P eglGetCurrentSurface(int which) { return OURS("eglGetCurrentSurface", P, int)(which); }
U eglReleaseThread(void) { return OURS("eglReleaseThread", U, void)(); }
