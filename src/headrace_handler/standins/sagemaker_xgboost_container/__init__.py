"""Stand-in for the package of SageMaker's XGBoost image: its data formats as `xgboost.DMatrix`."""
