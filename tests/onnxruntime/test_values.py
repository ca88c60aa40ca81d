"""Options, values, bindings and the rest of the names, against ONNX Runtime's own."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import onnx
import pytest

from glnn.gl.device import SHARED
from glnn.onnxruntime.capi.node_arg import header_from_bytes
from glnn.onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
from tests.onnxruntime.models import F, identity

CPU = ["CPUExecutionProvider"]
GLNN = ["GlnnExecutionProvider", "CPUExecutionProvider"]
DEFAULTS = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "enable_profiling": False,
    "inter_op_num_threads": 0,
    "intra_op_num_threads": 0,
    "log_severity_level": -1,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "profile_file_prefix": "onnxruntime_profile_",
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}


def test_defaults(ort) -> None:
    options = ort.SessionOptions()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    run = ort.RunOptions()
    assert (run.log_severity_level, run.logid, run.terminate) == (-1, "", False)
    assert not run.only_execute_path_to_fetches
    assert not options.has_providers()


@pytest.mark.parametrize("name", ["enable_mem_pattern", "intra_op_num_threads", "logid"])
@pytest.mark.parametrize("value", [1, -5, "x", 1.5, True, None, [], b"y", np.int64(3)])
def test_what_attributes_take(ort, name, value) -> None:
    flag, whole = name.startswith("enable"), name.startswith("intra")
    refused = (flag and isinstance(value, (str, bytes, list))) or (
        whole and not isinstance(value, (int, np.integer))
    )
    refused |= name == "logid" and not isinstance(value, (str, bytes))
    options = ort.SessionOptions()
    if refused:
        with pytest.raises(TypeError):
            setattr(options, name, value)
        assert getattr(options, name) == DEFAULTS[name]
    else:
        setattr(options, name, value)
        expected = bool(value) if flag else int(value) if whole else "y" if value == b"y" else value
        assert getattr(options, name) == expected
        assert type(getattr(options, name)) is type(expected)


def test_what_options_refuse(ort) -> None:
    options = ort.SessionOptions()
    for name, value in (("graph_optimization_level", 1), ("execution_mode", "ORT_PARALLEL")):
        with pytest.raises(TypeError):
            setattr(options, name, value)
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1
    with pytest.raises(AttributeError):
        ort.RunOptions().logs = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    with pytest.raises(TypeError):
        options.add_free_dimension_override_by_name("N", "3")
    with pytest.raises(RuntimeError, match="Unknown Provider Type: XYZ"):
        options.add_provider("XYZ", {})
    with pytest.raises(Exception, match="1 : FAIL : Failed to load library /no"):
        options.register_custom_ops_library("/no.so")


def test_entries(ort) -> None:
    options, run = ort.SessionOptions(), ort.RunOptions()
    options.add_session_config_entry("a", "b")
    options.add_session_config_entry("a", "c")
    assert options.get_session_config_entry("a") == "c"
    run.add_run_config_entry("a", "b")
    assert run.get_run_config_entry("a") == "b"
    with pytest.raises(
        RuntimeError, match="SessionOptions does not have configuration with key: q"
    ):
        options.get_session_config_entry("q")
    with pytest.raises(RuntimeError, match="RunOptions does not have configuration with key: q"):
        run.get_run_config_entry("q")
    for key in ("", "a" * 1025):
        with pytest.raises(RuntimeError, match="Config key is empty or longer than maximum"):
            options.add_session_config_entry(key, "")
    with pytest.raises(TypeError):
        options.add_session_config_entry("a", 1)


def test_enumerations(ort) -> None:
    level = ort.GraphOptimizationLevel
    assert str(level.ORT_ENABLE_ALL) == "GraphOptimizationLevel.ORT_ENABLE_ALL"
    assert repr(level.ORT_ENABLE_ALL) == "<GraphOptimizationLevel.ORT_ENABLE_ALL: 99>"
    assert (int(level.ORT_ENABLE_ALL), level(1)) == (99, level.ORT_ENABLE_BASIC)
    assert (level.ORT_ENABLE_BASIC.name, level.ORT_ENABLE_BASIC.value) == ("ORT_ENABLE_BASIC", 1)
    assert level(1) == 1
    assert copy.deepcopy(level(2)) == level(2) == pickle.loads(pickle.dumps(level(2)))
    assert ort.OrtMemType.CPU == ort.OrtMemType.CPU_OUTPUT


ENUMERATIONS = [
    "GraphOptimizationLevel",
    "ExecutionMode",
    "ExecutionOrder",
    "OrtMemType",
    "OrtAllocatorType",
    "OrtCompileApiFlags",
    "OrtDeviceMemoryType",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDeviceType",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "ModelPackageWriteMode",
    "OrtDeviceVendorId",
]


def test_names(ours) -> None:
    """Everything that ONNX Runtime has in public, or says that it is not there."""
    real = pytest.importorskip("onnxruntime")
    if real.__version__ != ours.__version__:
        pytest.skip(f"compared with {ours.__version__}, {real.__version__} is here")
    public = {n for n in dir(real) if n[0] != "_" and not isinstance(vars(real)[n], ModuleType)}
    assert not public - {"import_capi_exception"} - set(dir(ours))
    assert len(public) > 60
    for name in ENUMERATIONS:
        theirs = {n: int(one) for n, one in getattr(real, name).__members__.items()}
        assert {n: int(one) for n, one in getattr(ours, name).__members__.items()} == theirs
    for name in ("SessionOptions", "RunOptions", "InferenceSession", "OrtValue", "IOBinding"):
        theirs = {n for n in dir(getattr(real, name)) if n[0] != "_"}
        assert not theirs - set(dir(getattr(ours, name))), name
    for name in ("NodeArg", "ModelMetadata", "OrtMemoryInfo", "OrtArenaCfg"):
        theirs = {n for n in dir(getattr(real, name)) if n[0] != "_"} - {"create_v2"}
        given = {"OrtArenaCfg": (0, -1, -1, -1), "NodeArg": ("x", "tensor(float)", ())}
        made = getattr(ours, name)(*given.get(name, ()))
        assert not theirs - set(dir(made)), name


def test_exceptions(states) -> None:
    for name in [
        "Fail",
        "InvalidArgument",
        "NoSuchFile",
        "NoModel",
        "EngineError",
        "RuntimeException",
        "NotFound",
        "InvalidProtobuf",
        "ModelLoaded",
        "NotImplemented",
        "InvalidGraph",
        "EPFail",
        "DeviceReset",
        "ModelLoadCanceled",
        "ModelRequiresCompilation",
    ]:
        kind = getattr(states, name)
        assert issubclass(kind, Exception)
        assert not issubclass(kind, (RuntimeError, ValueError))
        assert str(kind("a text")) == "a text"


def test_modules(ours) -> None:
    state = import_module("glnn.onnxruntime.capi._pybind_state")
    assert ours.capi.onnxruntime_pybind11_state.InvalidArgument is state.InvalidArgument
    collection = ours.capi.onnxruntime_inference_collection
    assert collection.InferenceSession is ours.InferenceSession
    for name in ("quantization", "tools"):
        with pytest.raises(ImportError, match=f"glnn.onnxruntime has no {name}"):
            import_module(f"glnn.onnxruntime.{name}")
    for absent in (ours.SparseTensor, ours.LoraAdapter, ours.ModelCompiler):
        with pytest.raises(state.NotImplemented, match="9 : NOT_IMPLEMENTED : glnn has no"):
            absent()


def test_what_it_says_of_itself(ort) -> None:
    assert ort.get_device() == "CPU"
    assert ort.__version__ == ort.get_version_string() == ort.version
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert "CUDAExecutionProvider" not in ort.get_available_providers()
    assert set(ort.get_available_providers()) <= set(ort.get_all_providers())
    assert ort.get_build_info().startswith("ORT Build Info: ")
    assert not ort.has_collective_ops()
    ort.set_default_logger_severity(np.int64(4))
    with pytest.raises(RuntimeError, match="Invalid logging severity"):
        ort.set_default_logger_severity(7)
    with pytest.raises(TypeError):
        ort.set_default_logger_severity("x")
    ort.set_default_logger_verbosity(0)
    ort.set_seed(5)
    ort.enable_telemetry_events()
    ort.disable_telemetry_events()
    ort.preload_dlls()


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i4", "i8", "?", "u1", "i1", "u2", "u8"])
def test_values(ort, dtype) -> None:
    array = np.ones((2, 3), dtype)
    value = ort.OrtValue.ortvalue_from_numpy(array)
    number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    assert value.element_type() == number
    assert value.data_type() == ort.OrtValue.ortvalue_from_shape_and_type([1], dtype).data_type()
    assert ort.OrtValue.ortvalue_from_shape_and_type([1], number).numpy().dtype == dtype
    assert (value.shape(), value.device_name()) == ([2, 3], "cpu")
    assert value.is_tensor()
    assert value.has_value()
    assert not value.is_sparse_tensor()
    assert not value.is_tensor_sequence()
    assert value.data_ptr() == array.ctypes.data
    assert value.tensor_size_in_bytes() == array.nbytes
    array[0, 0] = 0
    np.testing.assert_array_equal(value.numpy(), array)  # it is the memory that was given
    np.testing.assert_array_equal(np.asarray(value), array)
    value.update_inplace(np.zeros_like(array))
    assert not array.any()
    with pytest.raises(RuntimeError, match="The input size of numpy arrays does not"):
        value.update_inplace(np.ones((3, 3), dtype))
    with pytest.raises(TypeError, match="data must be a"):
        value.update_inplace([1])


def test_what_is_no_value(ort) -> None:
    make = ort.OrtValue.ortvalue_from_numpy
    for given in (np.array(["a"]), [1, 2]):
        with pytest.raises(RuntimeError, match="only supported from non-string numpy arrays"):
            make(given)
    for device in ("cuda", "dml"):
        with pytest.raises(RuntimeError):
            make(np.ones(2), device, 0)
    with pytest.raises(Exception, match="Unsupported device type: abc"):
        make(np.ones(2), "abc", 0)
    with pytest.raises(RuntimeError):
        ort.OrtValue.ortvalue_from_shape_and_type([-1], np.float32)
    np.testing.assert_array_equal(make(np.eye(3)[:, :2].T).numpy(), np.eye(3)[:, :2].T)


def test_values_of_other_types(ort) -> None:
    halves = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(halves, 16)
    assert (value.data_type(), value.shape()) == ("tensor(bfloat16)", [2])
    array = np.arange(3.0)
    np.testing.assert_array_equal(ort.OrtValue.from_dlpack(array).numpy(), array)
    np.testing.assert_array_equal(np.from_dlpack(ort.OrtValue.ortvalue_from_numpy(array)), array)


def test_runs_of_values(ort, session, feeds, y) -> None:
    given = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    (found,) = session.run_with_ort_values(["y"], given)
    np.testing.assert_array_equal(found.numpy(), y)
    assert len(session.run_with_ort_values(None, given)) == 3
    with pytest.raises(AttributeError):
        session.run_with_ort_values(["y"], feeds)


def test_bindings(ort, session, feeds, y) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", feeds["x"])
    array = feeds["i"]
    binding.bind_input("i", "cpu", 0, np.int64, array.shape, array.ctypes.data)
    target, place = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    binding.bind_output("z", "cpu", 0, np.float32, [2, 3], target.ctypes.data)
    binding.bind_output("j")
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(place))
    binding.synchronize_inputs()
    for more in (0, 5):  # what is bound is read anew by each run
        feeds["x"] += more
        session.run_with_iobinding(binding, ort.RunOptions())
        binding.synchronize_outputs()
        z, j, found = binding.copy_outputs_to_cpu()
        np.testing.assert_array_equal(found, y + more)
        np.testing.assert_array_equal(place, y + more)
        np.testing.assert_array_equal(target, np.maximum(y + more, 0))
        np.testing.assert_array_equal(z, target)
        np.testing.assert_array_equal(j, array)
        assert [one.shape() for one in binding.get_outputs()] == [[2, 3], [1, 2], [2, 3]]
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 3), np.float32)))
    binding.clear_binding_outputs()
    assert list(binding.get_outputs()) == []
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy().tolist() == [[1, 2, 3]]


def test_memory_that_is_not_the_hosts(ours, content, feeds) -> None:
    binding = ours.InferenceSession(content).io_binding()
    with pytest.raises(RuntimeError, match="input 'x' cannot lie in memory of 'cuda'"):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 3], feeds["x"].ctypes.data)
    with pytest.raises(RuntimeError, match="output 'y' cannot lie in memory of 'dml'"):
        binding.bind_output("y", "dml")


def test_wrong_bindings(ort, session, feeds, content) -> None:
    binding = ort.IOBinding(session)
    with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: q in the def list"):
        binding.bind_cpu_input("q", feeds["x"])
    with pytest.raises(RuntimeError, match="Unable to create OrtValue from the given python obj"):
        binding.bind_cpu_input("x", [[1, 2, 3]])
    with pytest.raises(ValueError, match="`element_type` and `shape` are to be provided if pre"):
        binding.bind_output("y", "cpu", 0, buffer_ptr=feeds["x"].ctypes.data)
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    with pytest.raises(RuntimeError, match="Error in execution: At least one output should be r"):
        session.run_with_iobinding(binding)
    make = ort.OrtValue.ortvalue_from_shape_and_type
    binding.bind_ortvalue_output("y", make([2, 4], np.float32))
    with pytest.raises(RuntimeError, match="Error in execution: Got invalid dimensions for outpu"):
        session.run_with_iobinding(binding)
    binding.bind_ortvalue_output("y", make([2, 3], np.float64))
    with pytest.raises(RuntimeError, match=r"Unexpected output data type. Actual: \(tensor\(doub"):
        session.run_with_iobinding(binding)
    binding.bind_output("y")
    binding.bind_cpu_input("i", np.ones((1, 2), np.int32))
    with pytest.raises(RuntimeError, match=r"Error in execution: Unexpected input data type. Act"):
        session.run_with_iobinding(binding)
    other = ort.InferenceSession(content, providers=CPU)
    with pytest.raises(ValueError, match="IOBinding must be used with the session that created"):
        other.run_with_iobinding(binding)


def test_devices(ort) -> None:
    state = import_module(f"{ort.__name__}.capi._pybind_state")
    kind, memory = state.OrtDevice.cpu(), state.OrtDevice.default_memory()
    assert state.OrtDevice(kind, memory, 3).device_id() == 3
    assert state.OrtDevice(kind, memory, 0, 3).device_id() == 3
    device = ort.OrtDevice.make("cpu", 0)
    assert (device.device_type(), device.device_id(), device.device_mem_type()) == (0, 0, 0)
    assert ort.OrtDevice.make("cuda", 1).device_id() == 1
    with pytest.raises(Exception, match="Unsupported device type: abc"):
        ort.OrtDevice.make("abc", 0)
    info = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    assert (info.name, info.device_id) == ("Cpu", 0)
    arena = ort.OrtArenaCfg({"max_mem": 5})
    assert (arena.max_mem, arena.max_dead_bytes_per_chunk) == (5, -1)
    with pytest.raises(RuntimeError, match="Invalid OrtArenaCfg option: foo"):
        ort.OrtArenaCfg({"foo": 1})
    ort.create_and_register_allocator(info, None)


def test_a_backend_of_onnx(ort, feeds) -> None:
    backend = import_module(f"{ort.__name__}.backend")
    given = onnx.load_from_string(identity(F, [2, 3]))
    made = backend.prepare(given, "CPU", logid="mine")
    for inputs in ([feeds["x"]], feeds["x"]):
        np.testing.assert_array_equal(made.run(inputs, logid="this")[0], feeds["x"])
    np.testing.assert_array_equal(backend.run(given, [feeds["x"]])[0], feeds["x"])
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    with pytest.raises(RuntimeError, match="Incompatible device expected 'CUDA', got 'CPU'"):
        backend.prepare(given, "CUDA")


def test_types_of_inputs_and_outputs(ours, content) -> None:
    module = import_module("glnn.onnxruntime.transformers.io_binding_helper")
    helper, session = module.TypeHelper, ours.InferenceSession(content)
    assert helper.get_input_type(session, "i") == "tensor(int64)"
    assert helper.ort_type_to_numpy_type("tensor(float16)") is np.float16
    assert helper.ort_type_to_numpy_type("tensor(bool)") is bool
    expected = {"x": 1, "i": 7, "y": 1, "j": 7, "z": 1}
    assert helper.get_io_onnx_type_map(session) == expected
    assert helper.get_io_numpy_type_map(session)["i"] is np.int64
    for wrong in (lambda: helper.get_output_type(session, "x"),
                  lambda: helper.ort_type_to_onnx_type("tensor(abc)")):  # fmt: skip
        with pytest.raises(ValueError, match="not found"):
            wrong()


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
def test_providers_options_choose(ours, content, feeds, y, backend) -> None:
    asked = [("GlnnExecutionProvider", {"backend": backend}), "CPUExecutionProvider"]
    session = ours.InferenceSession(content, providers=asked)
    np.testing.assert_array_equal(session.run(["y"], feeds)[0], y)
    expected = CPU if backend == "cpu" else GLNN
    assert session.get_providers() == session._providers == expected
    told = session.get_provider_options()[expected[0]]
    assert told["backend"] == backend
    if backend != "cpu":
        assert session._provider_options.keys() == set(GLNN)
        assert told["renderer"]
        assert told["hosted"] == ""
    session.set_providers(["GlnnExecutionProvider"], [{"backend": "cpu"}])
    assert session.get_providers() == CPU
    np.testing.assert_array_equal(session.run(["y"], feeds)[0], y)


def test_the_cpus_provider_alone_is_no_choice(ours, content, monkeypatch) -> None:
    monkeypatch.setenv("GLNN_BACKEND", "feedback")
    session = ours.InferenceSession(content, providers=CPU)
    assert session.get_provider_options()["GlnnExecutionProvider"]["backend"] == "feedback"
    monkeypatch.setenv("GLNN_BACKEND", "cpu")
    assert ours.InferenceSession(content, providers=CPU).get_providers() == CPU


def test_options_of_a_provider_are_told_of_its_own_device(ours, content, monkeypatch) -> None:
    provider = "GlnnExecutionProvider", {"backend": "compute", "priority": "low"}
    session = ours.InferenceSession(content, providers=[provider])
    low = {wanted: device for wanted, device in SHARED._devices.items() if wanted.priority == "low"}
    monkeypatch.setattr(SHARED, "_devices", dict(low))
    assert session.get_provider_options()[provider[0]]["renderer"]
    assert low and SHARED._devices == low  # none was opened for that
    with pytest.raises(ValueError, match="max_batch must be a whole number, got 'x'"):
        ours.InferenceSession(content, providers=[(provider[0], {"max_batch": "x"})])


def test_providers_that_are_not_there(ort, content) -> None:
    cuda = ("CUDAExecutionProvider", {"device_id": 0})
    text = r"Specified provider 'CUDAExecutionProvider' is not in available provider names\."
    for asked in (["CUDAExecutionProvider", *CPU], [cuda, *CPU], ["CUDAExecutionProvider"]):
        with pytest.warns(UserWarning, match=text):
            session = ort.InferenceSession(content, providers=asked)
        assert "CPUExecutionProvider" in session.get_providers()
    with pytest.warns(UserWarning, match="Duplicate provider 'CPUExecutionProvider' encountered"):
        ort.InferenceSession(content, providers=CPU * 2)


@pytest.mark.parametrize(
    ("providers", "options", "text"),
    [
        ([5], None, "'providers' values must be either strings or"),
        ([("CPUExecutionProvider", 1)], None, "'providers' values must be either strings or"),
        (5, None, "'providers' should be a sequence"),
        (CPU, [{}, {}], "should be the same length if both are given"),
        (CPU, {"a": 1}, "'provider_options' should be a sequence"),
        (CPU, [5], "'provider_options' values must be dicts"),
    ],
)
def test_providers_that_are_malformed(ours, content, providers, options, text) -> None:
    with pytest.warns(UserWarning, match=text):
        ours.InferenceSession(content, None, providers, options)


def test_options_that_the_provider_has_not(ours, content) -> None:
    with pytest.raises(
        ValueError, match="GlnnExecutionProvider has no option 'device_id': it take"
    ):
        ours.InferenceSession(content, providers=["GlnnExecutionProvider"],
                              provider_options=[{"device_id": 0}])  # fmt: skip
    state = ours.capi.onnxruntime_pybind11_state
    with pytest.raises(state.Fail, match="1 : FAIL : unknown backend 'cuda': expected auto"):
        ours.InferenceSession(content, providers=[("GlnnExecutionProvider", {"backend": "cuda"})])


def _text(given: str | bytes) -> str:
    """What protobuf gives as bytes where it is no text."""
    return given if isinstance(given, str) else given.decode(errors="replace")


def test_headers_of_files_that_are_cut_and_changed(content) -> None:
    """What is read is what protobuf reads, or nothing."""
    chance = random.Random(5)
    right = 0
    for i in range(600):
        data = bytearray(content)
        if i % 3:
            data[chance.randrange(len(data))] = chance.randrange(128)
        else:
            del data[chance.randrange(len(data)) :]
        try:
            found = header_from_bytes(bytes(data))
        except ValueError:
            continue
        try:
            expected = onnx.ModelProto.FromString(bytes(data))
        except Exception:  # it looks closer
            continue
        right += 1
        assert found.producer_name == _text(expected.producer_name)
        assert found.graph_name == _text(expected.graph.name)
        assert found.graph == expected.HasField("graph")
        said = {_text(one.key): _text(one.value) for one in expected.metadata_props}
        assert found.metadata == said
        if expected.HasField("model_version"):
            assert found.version == expected.model_version
    assert right > 100


def test_importing_is_light() -> None:
    parts = ["graph", "kernels", "backends", "compile", "layers", "model", "onnx", "profiling"]
    code = "import sys, glnn.onnxruntime as ort; ort.capi._pybind_state.SessionOptions()"
    heavy = ["onnx", "onnxruntime", "torch", "rich", *(f"glnn.{part}" for part in parts)]
    code += f"; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_class(ours) -> None:
    assert ours.InferenceSession is InferenceSession
