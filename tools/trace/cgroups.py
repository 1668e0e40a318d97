"""Control groups: from the id that programs see to the path of the folder.

A cgroup's id is the inode number of its folder (cgroups(7)); every mounted hierarchy has its own. Names
of hierarchies: "unified" for version 2, the last part of the mount point for version 1.
"""

import os
import stat


def hierarchies():
    """[(name, mount point)] of the mounted hierarchies: version 2 first, then version 1 by name."""
    unified, others = [], []
    with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, place, kind = line.split(" ")[:3]
            if kind == "cgroup2":
                unified.append(("unified", place))
            elif kind == "cgroup":
                others.append((os.path.basename(place), place))
    return unified + sorted(others)


class Cgroups:
    """Paths of cgroups, remembered as long as they stay true."""

    def __init__(self):
        self._known = {}       # (mount point, id) -> folder

    def paths(self, cgroup_id, pattern):
        """"NAME:PATH" of the cgroup in each hierarchy whose name matches `pattern`, joined by commas."""
        from rawbpf.sources import matcher
        matches = matcher(pattern or "*")
        found = []
        for name, place in hierarchies():
            if matches(name):
                path = self.path(cgroup_id, place)
                if path:
                    found.append("%s:%s" % (name, path))
        return ",".join(found)

    def path(self, cgroup_id, place):
        """Path of the cgroup below its mount point ("/" for the root), "" when there is none."""
        folder = self._known.get((place, cgroup_id))
        if folder is None or _inode(folder) != cgroup_id:
            folder = self._find(cgroup_id, place)
            if folder is None:
                return ""
            self._known[place, cgroup_id] = folder
        return folder[len(place):] or "/"

    def _find(self, cgroup_id, place):
        if _inode(place) == cgroup_id:
            return place
        waiting = [place]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            if entry.inode() == cgroup_id:
                                return entry.path
                            waiting.append(entry.path)
            except OSError:
                continue       # gone meanwhile
        return None


def _inode(path):
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino if stat.S_ISDIR(status.st_mode) else None
