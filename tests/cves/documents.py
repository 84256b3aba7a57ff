"""YAML and JSON that come with a model, or that operators copy."""

from tests.cves.attack import Attack


def aliases() -> bytes:
    """YAML of 900 bytes that stands for 8 to the power of 12 texts."""
    lines = [b"a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 8)) for n in range(1, 12)]
    return b"\n".join(lines)


_CALL = b"a: !!python/object/new:os.system [true]"
_WRONG_TAGS = {"timestamp": b"a: !!timestamp x", "int": b"a: !!int ''", "bool": b"a: !!bool x"}

ATTACKS = (
    Attack(
        *("CVE-2022-1471", "TorchServe", "object of a class", "torchserve-manifest"),
        *(
            lambda: b'{"model": {"modelName": "m", "handler": "handler.py"}}\n!!javax.script.ScriptEngineManager []',
            "constructor",
        ),
    ),
    Attack("CVE-2020-14343", "PyYAML", "call of a function", "model-config-yaml", lambda: _CALL, "constructor"),
    Attack("CVE-2019-11253", "Kubernetes", "aliases that grow by powers", "model-config-yaml", aliases, "more than"),
    Attack("CVE-2019-11253", "Kubernetes", "aliases that grow by powers", "workload-spec", aliases, "more than"),
    Attack("CVE-2020-14343", "PyYAML", "call of a function", "stack-template", lambda: _CALL, "not supported"),
    Attack("CVE-2019-11253", "Kubernetes", "aliases that grow by powers", "stack-template", aliases, "not allowed"),
    *(
        Attack(
            *("found by this search, 2026", "PyYAML", f"text that is no {kind} behind its tag", "model-config-yaml"),
            *(lambda content=content: content, "does not fit the tag"),
        )
        for kind, content in _WRONG_TAGS.items()
    ),
)
