"""GLM-5.2: latent attention that an indexer makes sparse, and 256 routed experts, on a mesh of 16 devices.

Start at `model.py`; `config.py` holds every number, `counts.py` what follows from them without a device.
"""
