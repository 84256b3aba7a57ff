"""Variables that a model chooses reach its code, and no process outside of the sandbox."""

from headrace_handler.policy import decides_for_server, deferred, restored


def test_variables_that_choose_code_are_kept_from_servers() -> None:
    chosen = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONUSERBASE", "OPENSSL_CONF", "GCONV_PATH", "LOCPATH")
    chosen += ("PATH", "HOME", "TMPDIR", "SSLKEYLOGFILE", "TORCHINDUCTOR_CACHE_DIR", "CUDA_INJECTION64_PATH")
    assert [name for name in chosen if not decides_for_server(name)] == []
    settings = ("HF_TOKEN", "OMP_NUM_THREADS", "SM_NUM_GPUS", "OPTION_DTYPE", "PYTHONUNBUFFERED", "PYTHON_EXECUTABLE")
    assert [name for name in settings if decides_for_server(name)] == []


def test_code_gets_what_was_kept_from_its_server_in_place_of_the_servers_own() -> None:
    assert restored({**deferred({"LD_PRELOAD": "/own.so", "A": "1"}), "LD_PRELOAD": "/server.so"}) == {
        "LD_PRELOAD": "/own.so",
        "A": "1",
    }
