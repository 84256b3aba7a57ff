"""The platform, `headrace up`: puts store, reconciler, gateway and object storage together on one port."""
