"""What every optimizer of a program has once DistributedOptimizer has wrapped it."""


class WrappedOptimizer:
    """A base before the optimizer's own class, `_plain`."""

    def __reduce_ex__(self, protocol):
        """A copy, and what is read from a file, is a plain optimizer."""
        return _empty, (self._plain,), self.__getstate__()

    def _name_last_group(self):
        """(name, parameter) of the group that add_param_group() has just added; noted."""
        index = len(self.param_groups) - 1
        added = [(f"param_group.{index}.{i}", parameter)
                 for i, parameter in enumerate(self.param_groups[index]["params"])]
        self._parameter_names.update({parameter: name for name, parameter in added})
        return added


def _empty(plain):
    return plain.__new__(plain)
