"""The verbs, as calls and as commands, and the sets of them that use an option together."""
MODELS = ("training_model", "inference_model")
SIMULATED = ("compile", "tune", "explore")
COMMANDS = ("train", "infer", "inspect", *SIMULATED)
"""Those that are commands, too."""
TRAINING = ("train", "training_model", *SIMULATED)
UPDATING = ("train", "training_model")
RUNS = ("train", "infer", *MODELS)
