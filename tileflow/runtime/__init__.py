"""Running programs on this computer: models, engines and their memory, data, training with all that must survive an interruption."""
