"""CloudFormation: stacks of resources, which the operations of the other services create, change and remove."""
