"""Attaching one program to many points, with what the kernel refused kept beside what works."""

import errno
import functools

from .base import Attachment, SourceError

# What concerns one point only: the others may still be attached. EPERM, EMFILE, ENOMEM, ... end it.
OF_THE_POINT = {errno.EINVAL, errno.ENOENT, errno.EILSEQ, errno.EADDRNOTAVAIL, errno.EEXIST,
                 errno.EOPNOTSUPP, errno.ENOTSUP, errno.EIO, errno.ENODEV, errno.ESRCH,
                 errno.ENOEXEC, errno.EBUSY, errno.ERANGE, 524}


def perf_cookies():
    """Do links of perf events carry cookies here (5.15+)?"""
    from rawbpf.loader import features

    return features.has_link("perf_event") and features.has_helper("bpf_get_attach_cookie", "kprobe")


def attach_perf(program, points, open_event, cookies=None, explain=None):
    """Attach to one perf event a point. `open_event(point) -> (attr, pid, cpu)`;
    `explain(point, error) -> str` makes a refusal's reason."""
    from rawbpf.loader.link import attach_perf_event
    from rawbpf.loader.perf import PerfEvent

    def one(point, cookie):
        attr, pid, cpu = open_event(point)
        event = PerfEvent.open(attr, pid, cpu)
        try:
            return attach_perf_event(program, event, cookie)
        except BaseException:
            event.close()
            raise

    return attach_each(points, one, cookies, explain)


def attach_each(points, one, cookies=None, explain=None):
    """`one(point, cookie) -> link` for every point; an Attachment. SourceError if none works."""
    groups = [[(point, cookies[index] if cookies else None)] for index, point in enumerate(points)]
    return attach_groups(groups, lambda group: one(*group[0]), explain)


def attach_groups(groups, link_of, explain=None):
    """`link_of(group) -> link` for every list of (point, cookie); an Attachment. SourceError if none works.

    The kernel refuses a whole group for one bad point: it is halved until the bad ones stand alone.
    """
    reserve_files()
    waiting, links, refused = groups[::-1], [], []
    try:
        while waiting:
            group = waiting.pop()
            point = group[0][0]
            try:
                links.append(link_of(group))
            except OSError as error:
                of_the_point = error.errno in OF_THE_POINT
                if of_the_point and len(group) > 1:
                    middle = len(group) // 2
                    waiting += [group[middle:], group[:middle]]
                    continue
                reason = explain(point, error) if explain else str(error)
                if not of_the_point:
                    raise SourceError("%s: %s" % (point.name, reason)) from error
                refused.append((point, reason))
        if not links:
            raise SourceError("%s: %s" % (refused[0][0].name, refused[0][1]))
    except BaseException:
        Attachment(links).close()
        raise
    return Attachment(links, refused)


@functools.lru_cache(maxsize=1)
def reserve_files():
    """Raise the soft limit of open files to the hard one: a script of many probes holds a descriptor or
    two for each. Done at the first attach; where it cannot be, the kernel's EMFILE names the limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return
