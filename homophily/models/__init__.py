"""The networks a config can name. Importing this registers the bundled ones; anyone's nn.Module works too."""

from homophily.models import mobilenet_v2, resnet_18, small
from homophily.models.base import models

__all__ = ["mobilenet_v2", "models", "resnet_18", "small"]
