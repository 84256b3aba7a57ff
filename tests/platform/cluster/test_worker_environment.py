from headrace.platform.cluster.local import worker_environment

SECRETS = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_ENDPOINT_URL": "http://x",
    "HF_TOKEN": "t",
    "HUGGING_FACE_HUB_TOKEN": "t",
    "GITHUB_TOKEN": "t",
    "DATABASE_URL": "u",
    "HEADRACE_API_KEY": "k",
    "HEADRACE_PORT": "1",
    "HEADRACE_MODEL": "m",
    "HF_MODEL_ID": "m",
    "OPTION_DTYPE": "d",
    "PORT": "1",
}
NEEDED = {
    "PATH": "/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "HEADRACE_HOME": "/h",
    "HEADRACE_CACHE_DIR": "/c",
    "HF_HOME": "/hf",
    "PIP_INDEX_URL": "http://pip",
    "https_proxy": "http://p",
    "HTTP_PROXY": "http://p",
    "XDG_CACHE_HOME": "/x",
    "CUDA_VISIBLE_DEVICES": "0",
    "SSL_CERT_FILE": "/ca",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def test_a_worker_gets_the_needed_variables_but_no_secrets_or_settings_of_the_platform() -> None:
    assert worker_environment(SECRETS | NEEDED) == NEEDED | {"PYTHONUNBUFFERED": "1"}
