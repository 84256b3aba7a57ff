"""CloudWatch's errors, by the codes of its query protocol. Source: botocore's model of cloudwatch, 2010-08-01."""

from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.paging import Paginator


def invalid_value(message: str) -> AwsError:
    """A parameter has a value that it cannot have."""
    return AwsError("InvalidParameterValue", message)


def invalid_combination(message: str) -> AwsError:
    """Parameters that do not go together."""
    return AwsError("InvalidParameterCombination", message)


def missing_parameter(name: str) -> AwsError:
    """A parameter that is needed in this call."""
    return AwsError("MissingParameter", f"The parameter {name} is required.")


def validation_error(message: str) -> AwsError:
    """What is asked for breaks a rule; GetMetricData and the alarms say this where others say InvalidParameterValue."""
    return AwsError("ValidationError", message)


def alarm_not_found(name: str) -> AwsError:
    """No alarm by that name."""
    return AwsError("ResourceNotFound", f"Alarm {name} does not exist.", status=404)


PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidNextToken", "The NextToken is not one of this list. Begin without it.")
)
