# An endpoint with its role, its scaling and a log group by Terraform's AWS provider.
#
#     headrace up --detach
#     eval "$(headrace env)"    # AWS_ENDPOINT_URL and the access key
#     terraform init && terraform apply

terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}

provider "aws" {
  region            = "us-east-1"
  s3_use_path_style = true
}

resource "aws_iam_role" "endpoint" {
  name_prefix = "endpoint-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "sagemaker.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "endpoint" {
  role       = aws_iam_role.endpoint.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
}

resource "aws_sagemaker_model" "chat" {
  execution_role_arn = aws_iam_role.endpoint.arn
  primary_container {
    image       = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi27.0.0-cu130"
    environment = { HF_MODEL_ID = "smollm2" }
  }
}

resource "aws_sagemaker_endpoint_configuration" "chat" {
  production_variants {
    variant_name           = "AllTraffic"
    model_name             = aws_sagemaker_model.chat.name
    instance_type          = "ml.g5.2xlarge"
    initial_instance_count = 1
    initial_variant_weight = 1
  }
}

resource "aws_sagemaker_endpoint" "chat" {
  endpoint_config_name = aws_sagemaker_endpoint_configuration.chat.name
}

resource "aws_appautoscaling_target" "chat" {
  service_namespace  = "sagemaker"
  scalable_dimension = "sagemaker:variant:DesiredInstanceCount"
  resource_id        = "endpoint/${aws_sagemaker_endpoint.chat.name}/variant/AllTraffic"
  min_capacity       = 1
  max_capacity       = 2
}

resource "aws_appautoscaling_policy" "chat" {
  name               = "invocations"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.chat.service_namespace
  scalable_dimension = aws_appautoscaling_target.chat.scalable_dimension
  resource_id        = aws_appautoscaling_target.chat.resource_id
  target_tracking_scaling_policy_configuration {
    target_value = 60
    predefined_metric_specification {
      predefined_metric_type = "SageMakerVariantInvocationsPerInstance"
    }
  }
}

output "endpoint" {
  value = aws_sagemaker_endpoint.chat.name
}
