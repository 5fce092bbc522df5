"""The classes on ``pytorch_lightning``; imported when one of them is first used."""

import pytorch_lightning

from lockstep.train.lightning.classes import make_classes

globals().update(make_classes(pytorch_lightning, __name__))
