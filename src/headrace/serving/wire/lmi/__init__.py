"""DJL Serving / LMI: the request and response formats of the SageMaker large model containers 0.25 to 17+."""
