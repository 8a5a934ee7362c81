"""The lab of tutti: training of its models, planning, and the programs that measured and proved a release.

It imports the server, the models and the load generator; nothing of these imports it.
"""
