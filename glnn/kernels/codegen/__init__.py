"""GLSL that the host writes: declarations and lines of expressions, put into templates."""
