"""System calls that a session is refused, and why: those that could do harm, and others that nobody has missed."""

# fmt: off
REFUSED = {
    # The walls are made of mounts.
    "mounts": {
        "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
        "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
        "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    },
    # In a user namespace of its own a session would be root, and reach the parts of the kernel that only root reaches.
    "namespaces": {
        "unshare": (272, 97), "setns": (308, 268),
    },
    # Sessions may share a user id, which is all that these check.
    "other processes": {
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
        "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    },
    # Large or old, seldom used, and where kernel bugs were found before. Keyrings belong to no namespace,
    # and the contexts of the old asynchronous I/O are numbered for the machine as a whole.
    "kernel attack surface": {
        "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0), "add_key": (248, 217),
        "request_key": (249, 218), "keyctl": (250, 219), "open_by_handle_at": (304, 265),
        "name_to_handle_at": (303, 264), "fanotify_init": (300, 262), "lookup_dcookie": (212, 18),
        "nfsservctl": (180, 42), "modify_ldt": (154, None), "personality": (135, 92), "memfd_secret": (447, 447),
        "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235), "set_mempolicy": (238, 237),
        "set_mempolicy_home_node": (450, 450), "io_submit": (209, 2), "io_cancel": (210, 3), "io_getevents": (208, 4),
        "io_destroy": (207, 1), "io_pgetevents": (333, 292),
    },
    # What is spliced into a pipe stays in memory, however large the page, when its process has unmapped it.
    "memory beyond the limits": {
        "memfd_create": (319, 279), "vmsplice": (278, 75),
    },
    # With a signal of its own choice, a session that was stopped would wake itself.
    "signals to oneself": {
        "timer_create": (222, 107), "timer_settime": (223, 110), "timer_gettime": (224, 108),
        "timer_getoverrun": (225, 109), "timer_delete": (226, 111),
    },
    # Programs that filter are compiled, into memory of which the machine as a whole has little.
    "filters": {
        "seccomp": (317, 277),
    },
    # More memory beyond the limits. In the host's IPC namespace, they also reach what others have made, by its number.
    "System V and POSIX objects": {
        "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196), "shmdt": (67, 197), "semget": (64, 190),
        "semctl": (66, 191), "semop": (65, 193), "semtimedop": (220, 192), "msgget": (68, 186), "msgctl": (71, 187),
        "msgsnd": (69, 189), "msgrcv": (70, 188), "mq_open": (240, 180), "mq_unlink": (241, 181),
        "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184),
        "mq_getsetattr": (245, 185),
    },
    # All sessions share the system's files: watching them tells what others import and run, as does what is in the
    # page cache.
    "what others do": {
        "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
        "inotify_rm_watch": (255, 28), "fanotify_mark": (301, 263), "mincore": (27, 232),
    },
    # The machine as a whole: reserved to root, whatever capabilities a kernel is started with.
    "administration": {
        "kexec_load": (246, 104), "kexec_file_load": (320, 294), "create_module": (174, None),
        "query_module": (178, None), "init_module": (175, 105), "finit_module": (313, 273),
        "delete_module": (176, 106), "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89),
        "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "syslog": (103, 116), "iopl": (172, None),
        "ioperm": (173, None), "vhangup": (153, 58),
    },
    # The clock and the names are the host's too.
    "clocks and names": {
        "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
        "sethostname": (170, 161), "setdomainname": (171, 162),
    },
    "of no use to Python, or old": {
        "setfsuid": (122, 151), "setfsgid": (123, 152), "rt_sigqueueinfo": (129, 138),
        "rt_tgsigqueueinfo": (297, 240), "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None),
        "mlock": (149, 228), "munlock": (150, 229), "mlockall": (151, 230), "munlockall": (152, 231),
        "mlock2": (325, 284), "_sysctl": (156, None), "readahead": (187, 213), "set_thread_area": (205, None),
        "get_thread_area": (211, None), "remap_file_pages": (216, 234), "get_mempolicy": (239, 236),
        "ioprio_set": (251, 30), "ioprio_get": (252, 31), "get_robust_list": (274, 100), "tee": (276, 77),
        "sync_file_range": (277, 84), "recvmmsg": (299, 243), "sendmmsg": (307, 269), "pkey_mprotect": (329, 288),
        "pkey_alloc": (330, 289), "pkey_free": (331, 290), "process_mrelease": (448, 448), "futex_waitv": (449, 449),
        "setgroups": (116, 159), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
        "landlock_restrict_self": (446, 446),
    },
    # Of the machine as a whole.
    "flush what others wrote": {
        "sync": (162, 81), "syncfs": (306, 267),
    },
}
"""Group -> call -> its numbers on x86_64 and aarch64; None where the architecture lacks it."""
# fmt: on
