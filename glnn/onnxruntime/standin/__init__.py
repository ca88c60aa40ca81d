"""A folder for `sys.path`, in which the name onnxruntime is glnn's: see glnn/onnxruntime/shim.py.

`sitecustomize.py` is run at the start of every Python that has it on PYTHONPATH; `onnxruntime` is
for those that have it on `sys.path` only later, as spawned processes do; and the folder beside them
answers `importlib.metadata`.
"""
