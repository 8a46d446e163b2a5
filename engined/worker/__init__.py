"""The device side of one rank: worker, model runner, persistent batch, sampler. The only user of the model classes."""
