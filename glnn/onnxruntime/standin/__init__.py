"""A folder for `sys.path`, in which onnxruntime is glnn's: see glnn/onnxruntime/shim.py.

Every Python with this folder on PYTHONPATH runs `sitecustomize.py` at its start. `onnxruntime` is
for processes that get the folder on `sys.path` later, as spawned ones do. The third folder is for
`importlib.metadata`.
"""
