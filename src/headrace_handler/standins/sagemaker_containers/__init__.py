"""Stand-in for the package of SageMaker's older images (scikit-learn, XGBoost); its import has no side effects."""
