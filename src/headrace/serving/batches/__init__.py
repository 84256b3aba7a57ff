"""
Batches of requests, as OpenAI's Files and Batch API and Anthropic's Message Batches describe them.

`api` answers the routes, `store` keeps files and batches in a folder, `service` runs the batches (`run` one of them),
and `journal` keeps each result once. The model server and the gateway of the platform both use this package: it calls
the application that answers the routes of single requests, whichever that is.
"""
