"""A component's states in AWS's words. Pure."""

from headrace.control.model.progress import EndpointView, State, visible_state

_WORDS = {State.ROLLING_BACK: "Updating", State.UPDATE_ROLLBACK_FAILED: "Failed"}
"""InferenceComponentStatus has fewer words than EndpointStatus. Source: botocore, sagemaker 2017-07-24."""


def component_status(view: EndpointView) -> str:
    """`InferenceComponentStatus`."""
    state = visible_state(view)
    return _WORDS.get(state, state.value)
