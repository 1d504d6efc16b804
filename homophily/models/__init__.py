"""The bundled networks. Importing this package registers them; users can pass any nn.Module instead."""

from homophily.models import mobilenet_v2, resnet_18, small
from homophily.models.base import models

__all__ = ["mobilenet_v2", "models", "resnet_18", "small"]
