"""Elastic jobs, which Horon does not have yet: each name says so when it is used."""

_TEXT = ("horon.torch.elastic.{} is not there yet: Horon has no elastic jobs. A rank that dies "
         "ends the job with an error that names it; start it again from the last checkpoint")


def run(func):
    raise NotImplementedError(_TEXT.format("run"))


class _Missing:
    def __init__(self, *args, **kwargs):
        raise NotImplementedError(_TEXT.format(type(self).__name__))


class State(_Missing):
    pass


class ObjectState(_Missing):
    pass


class TorchState(_Missing):
    pass


class ElasticSampler(_Missing):
    pass
