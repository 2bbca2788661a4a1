# Firn. Targets: build (default), run, check, bench, bench-peers, fuzz, install, clean.
#   make SAN=address,undefined check    the same tests under sanitizers (or SAN=thread)
#   make FAULTS=1 check                 with every system call failing once in the tests of faults, not just some
#   make CC=clang build                 another compiler

.DEFAULT_GOAL := build
SHELL := /bin/sh

CC      ?= cc
PREFIX  ?= /usr/local
SAN     ?=
FAULTS  ?=
JOBS    ?= $(shell nproc)
comma   := ,
OUT     := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)),)$(if $(FAULTS),/faults,)

ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(JOBS)
endif

WARN := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wcast-qual -Wvla -Wundef
# No contraction and no reassociation: the arithmetic is a contract (docs/ARITHMETIC.md).
BASE_CFLAGS := -std=c17 -D_POSIX_C_SOURCE=200809L -O2 -g -fno-strict-aliasing -ffp-contract=off -pthread -fvisibility=default \
               $(WARN) -Iinclude -Isrc $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALL_CFLAGS = $(BASE_CFLAGS) $(CFLAGS)
LIBS := -luring -llmdb -lxxhash -lzstd -lcrypto -lm -pthread
LIBS_LM := -ljansson -lpcre2-8
LIBS_SERVER := -lmicrohttpd
LINK = $(CC) $(if $(SAN),-fsanitize=$(SAN)) $(LDFLAGS)

# Where the folders stand in the architecture: see docs/ARCHITECTURE.md and tools/check_includes.sh.
FIRN_DIRS   := base array kernel layout record tier tier/disk tier/stack prefix
FIRNLM_DIRS := model engine
PROG_DIRS   := server cmd

ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)
srcs = $(foreach d,$(1),$(wildcard src/$(d)/*.c))
FIRN_SRCS   := $(call srcs,$(FIRN_DIRS))
FIRNLM_SRCS := $(call srcs,$(FIRNLM_DIRS))
PROG_SRCS   := $(call srcs,$(PROG_DIRS))
# Kernel variants of other processors are not built.
X86_ONLY := $(wildcard src/kernel/*_avx2.c src/kernel/*_avx512.c)
ARM_ONLY := $(wildcard src/kernel/*_neon.c)
ifneq ($(ARCH),x86_64)
FIRN_SRCS := $(filter-out $(X86_ONLY),$(FIRN_SRCS))
endif
ifneq ($(ARCH),aarch64)
FIRN_SRCS := $(filter-out $(ARM_ONLY),$(FIRN_SRCS))
endif

obj = $(patsubst %.c,$(OUT)/obj/%.o,$(1))
FIRN_OBJS   := $(call obj,$(FIRN_SRCS))
FIRNLM_OBJS := $(call obj,$(FIRNLM_SRCS))
PROG_OBJS   := $(call obj,$(PROG_SRCS))
# What tests of the program link: all of it but main.
PROG_TEST_OBJS := $(filter-out %/main.o,$(PROG_OBJS))
SUPPORT_OBJS := $(call obj,$(wildcard tests/support/*.c))

TEST_SRCS := $(wildcard tests/*/test_*.c)
TEST_BINS := $(patsubst tests/%.c,$(OUT)/tests/%,$(TEST_SRCS))
BENCH_BINS := $(patsubst bench/%.c,$(OUT)/bench/%,$(wildcard bench/bench_*.c))
TOOL_BINS := $(patsubst tools/%.c,$(OUT)/tools/%,$(wildcard tools/*.c))
EXAMPLE_BINS := $(patsubst examples/%.c,$(OUT)/examples/%,$(wildcard examples/*.c))

.PHONY: build run check test-binaries bench bench-peers fuzz install clean
build: $(OUT)/libfirn.a $(OUT)/libfirnlm.a $(if $(strip $(PROG_SRCS)),$(OUT)/firn)

$(OUT)/libfirn.a: $(FIRN_OBJS)
$(OUT)/libprogram.a: $(PROG_TEST_OBJS)
$(OUT)/libfirnlm.a: $(FIRNLM_OBJS)
$(OUT)/%.a:
	@mkdir -p $(@D)
	@rm -f $@
	ar rcs $@ $^

$(OUT)/firn: $(PROG_OBJS) $(OUT)/libfirnlm.a $(OUT)/libfirn.a
	$(LINK) -o $@ $^ $(LIBS_SERVER) $(LIBS_LM) $(LIBS)

# The kernels are the only place where -O3 and instruction sets matter. Under a sanitizer -O3 takes minutes to compile.
KERNEL_OPT := $(if $(SAN),-O1,-O3)
$(OUT)/obj/src/kernel/%.o: EXTRA := $(KERNEL_OPT)
$(OUT)/obj/src/kernel/%_avx2.o: EXTRA := $(KERNEL_OPT) -mavx2 -mfma -mf16c
$(OUT)/obj/src/kernel/%_avx512.o: EXTRA := $(KERNEL_OPT) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c

# The seams are the tables of firn/env.h and libc's symbols, in every build; what differs is how many faults are tried.
$(OUT)/obj/tests/%.o: EXTRA := $(if $(FAULTS),-DFIRN_FAULTS)

$(OUT)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(EXTRA) -Itests -MMD -MP -c -o $@ $<

$(OUT)/tests/%: $(OUT)/obj/tests/%.o $(SUPPORT_OBJS) $(OUT)/libprogram.a $(OUT)/libfirnlm.a $(OUT)/libfirn.a
	@mkdir -p $(@D)
	$(LINK) -o $@ $^ -lcmocka $(LIBS_SERVER) $(LIBS_LM) $(LIBS)

$(OUT)/bench/%: $(OUT)/obj/bench/%.o $(OUT)/libfirnlm.a $(OUT)/libfirn.a
	@mkdir -p $(@D)
	$(LINK) -o $@ $^ $(LIBS_LM) $(LIBS)

# Programs that make tables for the sources; they use nothing of them.
$(OUT)/tools/%: $(OUT)/obj/tools/%.o
	@mkdir -p $(@D)
	$(LINK) -o $@ $^ -lm

$(OUT)/examples/%: $(OUT)/obj/examples/%.o $(OUT)/libfirn.a
	@mkdir -p $(@D)
	$(LINK) -o $@ $^ $(LIBS)

run: build
	exec $(OUT)/firn serve

test-binaries: build $(TEST_BINS) $(EXAMPLE_BINS) $(BENCH_BINS) $(TOOL_BINS)

check: test-binaries
	@$(if $(FAULTS),FIRN_CRASHES=10000) FIRN_OUT=$(abspath $(OUT)) sh tests/run.sh

bench: build $(BENCH_BINS)
	@FIRN_OUT=$(abspath $(OUT)) sh bench/run.sh

# Needs node and npm; installs a prebuilt llama.cpp into OUT.
bench-peers: build
	@FIRN_OUT=$(abspath $(OUT)) sh bench/peers/run.sh $(BENCH_PEERS_FLAGS)

# libFuzzer needs clang. FUZZ_SECONDS each; then power failures of the simulated disk.
FUZZ_SECONDS ?= 60
FIRN_CRASHES ?= 50000
fuzz: $(OUT)/tests/tier/test_disk_crash
	@+FUZZ_SECONDS=$(FUZZ_SECONDS) sh fuzz/run.sh
	@FIRN_CRASHES=$(FIRN_CRASHES) $(OUT)/tests/tier/test_disk_crash

install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include/firn $(DESTDIR)$(PREFIX)/share/firn
	install -m 755 $(OUT)/firn $(DESTDIR)$(PREFIX)/bin/firn
	install -m 644 $(OUT)/libfirn.a $(OUT)/libfirnlm.a $(DESTDIR)$(PREFIX)/lib/
	install -m 644 include/firn/*.h $(DESTDIR)$(PREFIX)/include/firn/
	install -m 644 models/firn-tiny-q8_0.gguf models/firn-tiny-draft-q8_0.gguf $(DESTDIR)$(PREFIX)/share/firn/

clean:
	rm -rf build

-include $(patsubst %.o,%.d,$(FIRN_OBJS) $(FIRNLM_OBJS) $(PROG_OBJS) $(SUPPORT_OBJS) $(call obj,$(TEST_SRCS) $(wildcard bench/*.c examples/*.c tools/*.c)))
.SECONDARY:
