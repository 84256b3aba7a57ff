"""All targets."""

from tests.fuzz.target import Target
from tests.fuzz.targets import (
    account,
    answers,
    archives,
    aws,
    batches,
    checkpoints,
    client_data,
    connections,
    dialects,
    documents,
    grammars,
    members,
    names,
    operator_files,
    plans,
    templates,
    text_files,
    tokenizers,
    transform,
)

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        connections,
        dialects,
        aws,
        account,
        answers,
        archives,
        checkpoints,
        tokenizers,
        grammars,
        plans,
        templates,
        text_files,
        client_data,
        transform,
        batches,
        documents,
        operator_files,
        members,
        names,
    )
    for target in module.TARGETS
}
