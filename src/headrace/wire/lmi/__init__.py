"""DJL Serving / LMI: what the SageMaker large model containers 0.25 to 17+ read and write."""
