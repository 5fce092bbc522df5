"""The classes on ``lightning.pytorch``; imported when one of them is first used."""

import lightning.pytorch

from lockstep.train.lightning.classes import make_classes

globals().update(make_classes(lightning.pytorch, __name__))
