"""Artifacts stage: get the model that the settings name, verified, as a directory.

`fetch.fetch` is the way in, `model_directory.ModelDirectory` the value that goes to the next stage.
"""
