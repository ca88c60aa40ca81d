"""Every error glnn raises on purpose. All of them are `GlnnError`."""


class GlnnError(Exception):
    """Base of all errors that glnn raises on purpose."""


class DeviceError(GlnnError):
    """No usable GL context, a closed or reset device, the wrong thread, a fork, or a GL error."""


class LimitError(GlnnError):
    """Something exceeds what this device offers: a size, a block, a workgroup."""


class ShaderError(GlnnError):
    """A shader does not compile or link, or its declaration is wrong."""


class LayoutError(GlnnError, ValueError):
    """A layout is malformed, or does not fit an array."""


class ShapeError(GlnnError, ValueError):
    """An array's shape or dtype is not what an op, layer or model takes."""


class ModelError(GlnnError):
    """A model, weight or data file is missing, malformed or refused."""


class UnsupportedOpError(GlnnError):
    """No kernel of this backend can run an op here; the message says why."""
