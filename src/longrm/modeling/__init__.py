"""Models: how they are loaded, and how they read a prefix that several responses share."""

import logging

# Transformers imports DeepSpeed, wherever it is installed, as soon as it saves or trains a model. DeepSpeed then warns,
# on standard output, where results belong, of a CPU that nobody asked it to use.
logging.getLogger("DeepSpeed").addFilter(
    lambda record: "Setting accelerator to CPU" not in record.getMessage()
)
