"""Settings of a script: the config block, overridden by BPFTRACE_* environment variables.

Names and values are bpftrace's (docs/language.md, "Config Variables"); `strlen`, `map_keys_max` and other
older names are accepted.
"""


class ConfigError(Exception):
    """One sentence; the caller knows where the setting stands."""


def _number(name, value):
    number = value
    if isinstance(value, bool) or not isinstance(value, int):
        text = str(value)
        try:
            number = int(text, 8 if text[:1] == "0" and text.isdigit() else 0)
        except ValueError:
            number = -1
    if not 0 <= number < 1 << 64:
        raise ConfigError("%s: expecting a number, got %s" % (name, value))
    return number


def _bool(name, value):
    text = str(value).lower()
    if text in ("1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise ConfigError("%s: Invalid bool value: valid values are true, false, 1 or 0." % name)


def _text(name, value):
    return str(value)


def _one_of(*allowed):
    def check(name, value):
        text = str(value).lower()
        if text not in allowed:
            raise ConfigError("%s: Invalid value for %s: valid values are %s and %s."
                              % (name, name, ", ".join(allowed[:-1]), allowed[-1]))
        return text
    return check


def _unstable(name, value):
    text = str(value).lower()
    return _one_of("enable", "warn", "error")(name, {"1": "enable", "true": "enable", "0": "error",
                                                     "false": "error"}.get(text, text))


_LICENSES = ("Dual MIT/GPL", "Dual BSD/GPL", "Dual MPL/GPL", "GPL and additional rights", "GPL v2", "GPL")


def _license(name, value):
    if value not in _LICENSES:
        raise ConfigError("Invalid value for license. Found: %s. Valid values: %s."
                          % (value, ", ".join(_LICENSES)))
    return value


def _symbol_cache(name, value):
    text = str(value).lower()
    text = {"1": "default", "0": "none"}.get(text, text)
    if text not in ("default", "per_pid", "per_program", "none"):
        raise ConfigError("%s: Invalid value for cache_user_symbols: valid values are PER_PID, PER_PROGRAM, "
                          "and NONE." % name)
    return text


#: name -> (default, parser)
SETTINGS = {
    "cache_user_symbols": ("default", _symbol_cache),
    "cpp_demangle": (True, _bool),
    "lazy_symbolication": (True, _bool),
    "license": ("GPL", _license),
    "log_size": (1000000, _number),
    "max_bpf_progs": (1024, _number),
    "max_cat_bytes": (10240, _number),
    "max_map_keys": (4096, _number),
    "max_probes": (1024, _number),
    "max_strlen": (1024, _number),
    "missing_probes": ("error", _one_of("ignore", "warn", "error")),
    "on_stack_limit": (32, _number),
    "perf_rb_pages": (0, _number),
    "print_maps_on_exit": (True, _bool),
    "show_debug_info": (True, _bool),
    "stack_mode": ("bpftrace", _one_of("bpftrace", "perf", "raw", "build_id")),
    "str_trunc_trailer": ("..", _text),
    "unstable_dw_ustack": ("warn", _unstable),
    "unstable_import_statement": ("error", _unstable),
    "unstable_tseries": ("warn", _unstable),
    "unstable_typeinfo": ("error", _unstable),
    "use_blazesym": (False, _bool),
}
RENAMED = {"strlen": "max_strlen", "no_cpp_demangle": "cpp_demangle", "cat_bytes_max": "max_cat_bytes",
           "map_keys_max": "max_map_keys"}
DEPRECATED = ("symbol_source", "max_type_res_iterations", "unstable_addr", "unstable_import", "unstable_macro",
              "unstable_map_decl")
ENVIRONMENT_ONLY = ("btf", "kernel_build", "kernel_source", "vmlinux")


class Config:
    """The settings as attributes."""

    def __init__(self, environment=None):
        for name, (default, _) in SETTINGS.items():
            setattr(self, name, default)
        self._fixed, self.given = set(), set()      # what the environment has set; what anything has
        for name in [*SETTINGS, *RENAMED] if environment else ():
            value = environment.get("BPFTRACE_" + name.upper())
            if value is not None:
                self.set("BPFTRACE_" + name.upper(), value)
                self._fixed.add(RENAMED.get(name, name))

    def set(self, key, value):
        """Set by any accepted spelling. What the environment has set stays. Returns what is doubtful about it, or ""."""
        name = key.lower()
        if name.startswith("bpftrace_"):
            name = name[len("bpftrace_"):]
        if name == "no_cpp_demangle":
            value = not _bool(name, value)
        name = RENAMED.get(name, name)
        if name in ENVIRONMENT_ONLY:
            raise ConfigError("%s: can only be set as an environment variable" % key)
        if name in DEPRECATED:
            return "%s is deprecated and has no effect" % key
        if name not in SETTINGS:
            raise ConfigError("%s: not a known configuration option" % key)
        value = SETTINGS[name][1](key, value)
        self.given.add(name)
        if name not in self._fixed:
            setattr(self, name, value)
        return "%s has been renamed, please use %s" % (key, name) if key.lower() in RENAMED else ""
