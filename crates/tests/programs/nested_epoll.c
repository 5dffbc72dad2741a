/*
 * A thread sleeps on an epoll set, and another one changes what is in it, or in the sets in it: `nested_epoll PORT`. Prints of each way
 * to sleep what woke it, and "all" at the end. What is not told in time counts as not told.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"

enum { ONCE = EPOLLIN | EPOLLONESHOT, EDGE = EPOLLIN | EPOLLET, DEPTH_MAX = 3, IN_TIME_S = 4, ROUNDS = 20 };
enum { UNKNOWN = -2 };
enum { WAIT, PWAIT2, POLL, PPOLL, SELECT, PSELECT, WAYS };

static const char *const names[WAYS] = {"epoll_wait", "epoll_pwait2", "poll", "ppoll", "select", "pselect"};

static void part(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

static void say(int fd)
{
	MUST(send(fd, "x", 1, 0) == 1);
}

static void until_readable(int fd)
{
	char room;
	MUST(recv(fd, &room, 1, MSG_PEEK) == 1);
}

static void control(int set, int op, int fd, unsigned events)
{
	struct epoll_event event = {.events = events, .data.u64 = fd};
	MUST(epoll_ctl(set, op, fd, &event) == 0);
}

/* What a set tells of now. */
static int told(int set)
{
	struct epoll_event events[4];
	return epoll_wait(set, events, 4, 0);
}

struct sleeper {
	pthread_t thread;
	_Atomic pid_t id;
	int way, set;
	/* UNKNOWN until the call is over. */
	_Atomic int result;
	struct epoll_event event;
};

static void *asleep(void *of)
{
	struct sleeper *me = of;
	struct pollfd polled = {.fd = me->set, .events = POLLIN};
	struct timespec limit = {.tv_sec = IN_TIME_S};
	struct timeval limit_us = {.tv_sec = IN_TIME_S};
	fd_set read;
	FD_ZERO(&read);
	FD_SET(me->set, &read);
	me->id = gettid();
	switch (me->way) {
	case WAIT:
		me->result = epoll_wait(me->set, &me->event, 1, IN_TIME_S * 1000);
		break;
	case PWAIT2:
		me->result = epoll_pwait2(me->set, &me->event, 1, &limit, NULL);
		break;
	case POLL:
		me->result = poll(&polled, 1, IN_TIME_S * 1000);
		break;
	case PPOLL:
		me->result = ppoll(&polled, 1, &limit, NULL);
		break;
	case SELECT:
		me->result = select(me->set + 1, &read, NULL, NULL, &limit_us);
		break;
	case PSELECT:
		me->result = pselect(me->set + 1, &read, NULL, NULL, &limit, NULL);
		break;
	}
	return NULL;
}

static void until_sleeper_is(struct sleeper *sleeper)
{
	while (!sleeper->id)
		sched_yield();
	until_asleep(sleeper->id);
}

static void begin(struct sleeper *sleeper, int way, int set)
{
	*sleeper = (struct sleeper){.way = way, .set = set, .result = UNKNOWN};
	MUST(pthread_create(&sleeper->thread, NULL, asleep, sleeper) == 0);
	until_sleeper_is(sleeper);
}

static int end(struct sleeper *sleeper)
{
	MUST(pthread_join(sleeper->thread, NULL) == 0);
	return sleeper->result;
}

/* A chain of sets, the outermost one first, without the link that `but` leads to. */
static void link_sets(int *sets, int depth, unsigned events, int but)
{
	for (int n = 0; n <= depth; n++) {
		sets[n] = epoll_create1(EPOLL_CLOEXEC);
		MUST(sets[n] >= 0);
	}
	for (int n = 1; n <= depth; n++)
		if (n != but)
			control(sets[n - 1], EPOLL_CTL_ADD, sets[n], events);
}

static void close_sets(int *sets, int depth)
{
	for (int n = 0; n <= depth; n++)
		close(sets[n]);
}

enum { READABLE, LATER, BESIDE_KERNELS, SET_READABLE, SET_LATER, SET_ONCE, SOCKET_ONCE, EDGES, EDGE_AGAIN, CONNECTS, KINDS };

static const char *const kinds[KINDS] = {
	"a readable socket comes", "a socket comes, and then bytes", "a socket comes beside the kernel's",
	"a set with a readable socket comes", "a set comes, and then bytes", "a one-shot set is armed anew",
	"a one-shot socket is armed anew", "an edge", "an edge-triggered set is told of anew",
	"a socket connects, and then bytes come",
};

static void one(int kind, int way, int depth)
{
	int sets[DEPTH_MAX + 1], ends[2], link = 0, event = eventfd(0, EFD_CLOEXEC), late = -1;
	struct sleeper sleeper;
	unsigned events = kind == EDGES || kind == EDGE_AGAIN || kind == CONNECTS ? EDGE : EPOLLIN;
	now = kinds[kind];
	join(ends);
	/* Of the links the innermost one is missing, or the next. */
	if (kind == SET_READABLE || kind == SET_LATER)
		link = depth > 1 && way % 2 ? depth - 1 : depth;
	link_sets(sets, depth, events, link);
	int outer = sets[0], inner = sets[depth];
	if (kind == READABLE || kind == SET_READABLE || kind == SET_ONCE || kind == SOCKET_ONCE || kind >= EDGES) {
		say(ends[1]);
		until_readable(ends[0]);
	}
	if (kind == SET_READABLE || kind == SET_LATER || kind == SET_ONCE || kind == EDGES || kind == EDGE_AGAIN)
		control(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN);
	if (kind == SOCKET_ONCE) {
		control(inner, EPOLL_CTL_ADD, ends[0], ONCE);
		MUST(told(inner) == 1);
	}
	if (kind == SET_ONCE) {
		control(sets[depth - 1], EPOLL_CTL_MOD, inner, ONCE);
		MUST(told(sets[depth - 1]) == 1);
	}
	if (kind == BESIDE_KERNELS)
		control(inner, EPOLL_CTL_ADD, event, EPOLLIN);
	if (kind == EDGES || kind == EDGE_AGAIN)
		MUST(told(outer) == 1);
	if (kind == CONNECTS) {
		late = socket(AF_INET, SOCK_STREAM, 0);
		control(inner, EPOLL_CTL_ADD, late, EDGE);
		for (int n = depth; n >= 0; n--)
			told(sets[n]);
	}
	MUST(told(outer) == 0);
	begin(&sleeper, way, outer);
	switch (kind) {
	case READABLE:
	case LATER:
	case BESIDE_KERNELS:
		control(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN);
		break;
	case SET_READABLE:
	case SET_LATER:
		control(sets[link - 1], EPOLL_CTL_ADD, sets[link], EPOLLIN);
		break;
	case SET_ONCE:
		control(sets[depth - 1], EPOLL_CTL_MOD, inner, ONCE);
		break;
	case SOCKET_ONCE:
		control(inner, EPOLL_CTL_MOD, ends[0], ONCE);
		break;
	case EDGES:
		say(ends[1]);
		break;
	case EDGE_AGAIN:
		control(outer, EPOLL_CTL_MOD, sets[1], EDGE);
		break;
	case CONNECTS:
		MUST(connect(late, (struct sockaddr *)&place, sizeof place) == 0);
		close(ends[1]);
		ends[1] = accept(listener, NULL, NULL);
		break;
	}
	if (kind == LATER || kind == BESIDE_KERNELS || kind == SET_LATER || kind == CONNECTS) {
		until_sleeper_is(&sleeper);
		say(ends[1]);
	}
	int result = end(&sleeper);
	printf("%s, %d deep, by %s: %d", now, depth, names[way], result);
	if (way <= PWAIT2 && result > 0)
		printf(" (%x, %d)", sleeper.event.events,
		       sleeper.event.data.fd == (depth ? sets[1] : kind == CONNECTS ? late : ends[0]));
	printf(", then %d", told(outer));
	printf(" and %d\n", told(outer));
	close_sets(sets, depth);
	part(ends);
	close(event);
	if (late >= 0)
		close(late);
}

/* Of two threads that sleep in one set, each is told of an edge, whether the other one comes back or not. */
static void two_in_one_set(void)
{
	int set = epoll_create1(0), ends[2];
	struct sleeper two[2];
	now = "two in one set";
	join(ends);
	begin(&two[0], WAIT, set);
	begin(&two[1], WAIT, set);
	control(set, EPOLL_CTL_ADD, ends[0], EDGE);
	for (int n = 0; n < 2; n++) {
		until_sleeper_is(&two[0]);
		until_sleeper_is(&two[1]);
		say(ends[1]);
		until_readable(ends[0]);
		/* One of them comes back by that. */
		while ((two[0].result == UNKNOWN) + (two[1].result == UNKNOWN) > 1 - n)
			sched_yield();
	}
	int first = end(&two[0]), second = end(&two[1]);
	printf("%s: %d and %d\n", now, first, second);
	close(set);
	part(ends);
}

/* A set in two others, in which threads sleep, as one does in it, and one polls it: all are told. */
static void all_around_one_set(void)
{
	int inner = epoll_create1(0), outer[2] = {epoll_create1(0), epoll_create1(0)}, ends[2];
	struct sleeper four[4];
	now = "all around one set";
	join(ends);
	control(outer[0], EPOLL_CTL_ADD, inner, EPOLLIN);
	control(outer[1], EPOLL_CTL_ADD, inner, EPOLLIN);
	begin(&four[0], WAIT, inner);
	begin(&four[1], WAIT, outer[0]);
	begin(&four[2], WAIT, outer[1]);
	begin(&four[3], POLL, inner);
	control(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN);
	for (int n = 0; n < 4; n++)
		until_sleeper_is(&four[n]);
	say(ends[1]);
	printf("%s:", now);
	for (int n = 0; n < 4; n++)
		printf(" %d", end(&four[n]));
	puts("");
	close(inner);
	close(outer[0]);
	close(outer[1]);
	part(ends);
}

/* Sockets and sets that are armed for one event each time, as pollers of virtual threads do it. */
static void rounds(void)
{
	int inner = epoll_create1(0), outer = epoll_create1(0), ends[2], count = 0;
	now = "rounds";
	join(ends);
	for (int round = 0; round < ROUNDS; round++) {
		struct sleeper sleeper;
		char room;
		begin(&sleeper, WAIT, outer);
		control(inner, round ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, ends[0], ONCE);
		MUST(told(inner) == 0);
		control(outer, round ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, inner, ONCE);
		if (round % 2)
			until_sleeper_is(&sleeper);
		say(ends[1]);
		if (end(&sleeper) != 1)
			break;
		MUST(told(inner) == 1 && recv(ends[0], &room, 1, 0) == 1 && told(outer) == 0);
		count++;
	}
	printf("%s: %d\n", now, count);
	close(inner);
	close(outer);
	part(ends);
}

/* Another process has looked at the connection, and does not look again. */
static void looked_at_by_a_child(void)
{
	int inner = epoll_create1(0), outer = epoll_create1(0), ends[2], looked[2];
	struct epoll_event event;
	char room;
	now = "looked at by a child";
	join(ends);
	control(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN);
	control(outer, EPOLL_CTL_ADD, inner, EPOLLIN);
	MUST(told(outer) == 0 && pipe(looked) == 0);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		MUST(recv(ends[0], &room, 1, MSG_PEEK | MSG_DONTWAIT) == -1 && write(looked[1], "x", 1) == 1);
		pause();
	}
	MUST(read(looked[0], &room, 1) == 1);
	say(ends[1]);
	printf("%s: %d\n", now, epoll_wait(outer, &event, 1, IN_TIME_S * 1000));
	MUST(recv(ends[0], &room, 1, MSG_DONTWAIT) == 1);
	MUST(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	part(looked);
	close(inner);
	close(outer);
	part(ends);
}

int main(int count, char **arguments)
{
	MUST(count == 2);
	/* Nothing here may hang. */
	alarm(50);
	setvbuf(stdout, NULL, _IOLBF, 0);
	listen_at_port(arguments[1]);
	for (int kind = 0; kind < KINDS; kind++)
		for (int way = 0; way < WAYS; way++)
			for (int depth = 0; depth <= DEPTH_MAX; depth++) {
				/* In these it is a set that comes, or is armed. */
				int needs_set = kind == SET_READABLE || kind == SET_LATER || kind == SET_ONCE || kind == EDGES ||
						kind == EDGE_AGAIN;
				if (depth || !needs_set)
					one(kind, way, depth);
			}
	two_in_one_set();
	all_around_one_set();
	rounds();
	looked_at_by_a_child();
	puts("all");
	return 0;
}
