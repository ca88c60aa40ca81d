"""Computation graphs: operators on values, without any knowledge of OpenGL."""
