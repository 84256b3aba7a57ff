"""The account around SageMaker: services that store records for their users, such as roles, policies and dashboards."""
