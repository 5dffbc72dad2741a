/*
 * Calls that wait, and what may come meanwhile: `blocking ADDRESS PORT`. Each case is tried and must come out as on Linux;
 * `blocking ADDRESS PORT files|locked` tries a connection under a
 * limit. Prints "same" at the end, or what differed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"

/* rpc/types.h, which not every system has. */
int bindresvport(int, struct sockaddr_in *);

static void part(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

struct call {
	int fd;
	int kind;
	_Atomic pid_t thread;
	ssize_t result;
	int error;
	int cleaned;
	/* What POLL, SELECT and EPOLL_OF were told. */
	unsigned told;
};

enum { READ, WRITE, RECVMSG, ACCEPT, POLL, SELECT, EPOLL, KINDS, EPOLL_OF = KINDS, CONNECT, SPLICE };

static char big[1 << 20];

static void clean(void *of)
{
	((struct call *)of)->cleaned = 1;
}

/* Makes the call, which waits; of EPOLL_OF `call->fd` is the set, of EPOLL `epoll`. */
static void wait_in(struct call *call, int epoll)
{
	struct pollfd polled = {call->fd, POLLIN, 0};
	struct iovec one = {big, 1};
	struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
	struct epoll_event event = {.events = EPOLLIN};
	fd_set set;
	FD_ZERO(&set);
	FD_SET(call->fd, &set);
	call->thread = gettid();
	switch (call->kind) {
	case READ:
		call->result = read(call->fd, big, 100);
		break;
	case WRITE:
		while ((call->result = send(call->fd, big, sizeof big, MSG_NOSIGNAL)) > 0)
			;
		break;
	case RECVMSG:
		call->result = recvmsg(call->fd, &message, 0);
		break;
	case ACCEPT:
		call->result = accept(call->fd, NULL, NULL);
		break;
	case POLL:
		call->result = poll(&polled, 1, -1);
		call->told = (unsigned)polled.revents;
		break;
	case SELECT:
		call->result = select(call->fd + 1, &set, NULL, NULL, NULL);
		call->told = FD_ISSET(call->fd, &set) != 0;
		break;
	case EPOLL:
	case EPOLL_OF:
		call->result = epoll_wait(epoll, &event, 1, -1);
		call->told = event.data.u32;
		break;
	}
	call->error = errno;
}

static void *make(void *of)
{
	struct call *call = of;
	int epoll = call->kind == EPOLL_OF ? call->fd : -1;
	if (call->kind == EPOLL) {
		struct epoll_event event = {.events = EPOLLIN};
		epoll = epoll_create1(0);
		MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, call->fd, &event) == 0);
	}
	pthread_cleanup_push(clean, call);
	wait_in(call, epoll);
	pthread_cleanup_pop(0);
	if (call->kind == EPOLL)
		close(epoll);
	return NULL;
}

static pthread_t begin(struct call *call, int fd, int kind)
{
	pthread_t thread;
	*call = (struct call){.fd = fd, .kind = kind};
	MUST(pthread_create(&thread, NULL, make, call) == 0);
	while (!call->thread)
		usleep(100);
	until_asleep(call->thread);
	return thread;
}

static void cancelled(void)
{
	for (int kind = 0; kind < KINDS; kind++) {
		int ends[2];
		struct call call;
		void *left;
		join(ends);
		pthread_t thread = begin(&call, kind == ACCEPT ? listener : ends[0], kind);
		MUST(pthread_cancel(thread) == 0);
		MUST(pthread_join(thread, &left) == 0);
		MUST(left == PTHREAD_CANCELED && call.cleaned);
		/* What it waited for can be waited for by others. */
		if (kind == READ) {
			thread = begin(&call, ends[0], READ);
			MUST(write(ends[1], "x", 1) == 1);
			pthread_join(thread, NULL);
			MUST(call.result == 1);
		}
		part(ends);
	}
}

static void *never(void *of)
{
	struct call *call = of;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	make(call);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	char byte;
	(void)!read(call->fd, &byte, 1);
	call->cleaned = 7;
	return NULL;
}

static void not_cancelled_while_it_does_not_let_itself(void)
{
	int ends[2];
	struct call call;
	void *left;
	pthread_t thread;
	join(ends);
	call = (struct call){.fd = ends[0], .kind = READ};
	MUST(pthread_create(&thread, NULL, never, &call) == 0);
	while (!call.thread)
		usleep(100);
	until_asleep(call.thread);
	MUST(pthread_cancel(thread) == 0);
	until_asleep(call.thread);
	MUST(write(ends[1], "xyz", 3) == 3);
	MUST(pthread_join(thread, &left) == 0);
	MUST(call.result == 3 && left == PTHREAD_CANCELED && call.cleaned != 7);
	part(ends);
}

static void shut_while_another_waits(void)
{
	int ends[2];
	struct call call;
	join(ends);
	pthread_t thread = begin(&call, ends[0], READ);
	MUST(shutdown(ends[0], SHUT_RD) == 0);
	pthread_join(thread, NULL);
	MUST(call.result == 0);
	part(ends);
	join(ends);
	thread = begin(&call, ends[0], WRITE);
	MUST(shutdown(ends[0], SHUT_WR) == 0);
	pthread_join(thread, NULL);
	MUST(call.result == -1 && call.error == EPIPE);
	part(ends);
}

static void closed_while_another_waits(void)
{
	int ends[2];
	struct call call;
	join(ends);
	pthread_t thread = begin(&call, ends[0], READ);
	MUST(close(ends[0]) == 0);
	/* The one that waits has it still. */
	MUST(write(ends[1], "still", 5) == 5);
	pthread_join(thread, NULL);
	MUST(call.result == 5 && memcmp(big, "still", 5) == 0);
	char byte;
	MUST(read(ends[1], &byte, 1) == 0);
	close(ends[1]);
}

/* A listener of its own. */
static int listen_at(struct sockaddr_in *own, int backlog)
{
	socklen_t len = sizeof *own;
	*own = place;
	own->sin_port = 0;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	MUST(bind(fd, (struct sockaddr *)own, sizeof *own) == 0 && listen(fd, backlog) == 0);
	MUST(getsockname(fd, (struct sockaddr *)own, &len) == 0);
	return fd;
}

/* Takes the number from the descriptor, in one of two ways. */
static void take_away(int fd, int by_dup)
{
	if (!by_dup) {
		MUST(close(fd) == 0);
		return;
	}
	int other = open("/dev/null", O_RDONLY);
	MUST(dup2(other, fd) == fd);
	close(other);
}

static atomic_int to_close = -1;

static void *close_what_is_there(void *rounds)
{
	for (uint32_t n = 0, seed = 1; n < *(uint32_t *)rounds; n++) {
		int fd;
		while ((fd = atomic_load(&to_close)) < 0)
			sched_yield();
		seed = seed * 1664525 + 1013904223;
		for (volatile uint32_t spin = seed >> 21; spin; spin--)
			;
		if (n & 1) {
			int other = open("/dev/null", O_RDONLY);
			dup2(other, fd);
			close(other);
		}
		close(fd);
		atomic_store(&to_close, -1);
	}
	return NULL;
}

/* At any moment of connect: the number stays closed, and either connect found nothing there, or the connection is made and ends. */
static void closed_while_another_connects(void)
{
	uint32_t rounds = 3000;
	pthread_t closer;
	MUST(pthread_create(&closer, NULL, close_what_is_there, &rounds) == 0);
	for (uint32_t n = 0; n < rounds; n++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		MUST(fd >= 0);
		atomic_store(&to_close, fd);
		int is_made = connect(fd, (struct sockaddr *)&place, sizeof place) == 0;
		MUST(is_made || errno == EBADF || errno == ENOTSOCK);
		while (atomic_load(&to_close) >= 0)
			sched_yield();
		MUST(fcntl(fd, F_GETFD) < 0);
		if (!is_made)
			continue;
		int end = accept(listener, NULL, NULL);
		char byte;
		MUST(end >= 0 && read(end, &byte, 1) == 0);
		close(end);
	}
	pthread_join(closer, NULL);
}

struct watched {
	int epoll;
	uint32_t rounds;
};

static atomic_int to_watch = -1;

static void *watch_what_is_there(void *of)
{
	struct watched *watched = of;
	for (uint32_t n = 0, seed = 1; n < watched->rounds; n++) {
		int fd;
		while ((fd = atomic_load(&to_watch)) < 0)
			sched_yield();
		seed = seed * 1664525 + 1013904223;
		for (volatile uint32_t spin = seed >> 20; spin; spin--)
			;
		struct epoll_event event = {.events = EPOLLOUT, .data.u64 = n};
		MUST(epoll_ctl(watched->epoll, EPOLL_CTL_ADD, fd, &event) == 0);
		atomic_store(&to_watch, -1);
	}
	return NULL;
}

/* At any moment of connect a set takes the socket, tells of it once connected, and of nothing else, also not when it is gone. */
static void watched_while_another_connects(void)
{
	struct watched watched = {epoll_create1(0), 1000};
	struct epoll_event event;
	pthread_t watcher;
	MUST(pthread_create(&watcher, NULL, watch_what_is_there, &watched) == 0);
	for (uint32_t n = 0; n < watched.rounds; n++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		atomic_store(&to_watch, fd);
		MUST(connect(fd, (struct sockaddr *)&place, sizeof place) == 0);
		while (atomic_load(&to_watch) >= 0)
			sched_yield();
		MUST(epoll_wait(watched.epoll, &event, 1, 5000) == 1);
		MUST(event.events == EPOLLOUT && event.data.u64 == n);
		close(fd);
		MUST(epoll_wait(watched.epoll, &event, 1, 0) == 0);
		close(accept(listener, NULL, NULL));
	}
	pthread_join(watcher, NULL);
	close(watched.epoll);
}

static void a_listener_closed_while_others_accept(void)
{
	for (int by_dup = 0; by_dup < 2; by_dup++) {
		enum { THREADS = 3 };
		struct sockaddr_in own;
		struct call calls[THREADS];
		pthread_t threads[THREADS];
		int ends[THREADS];
		int other = listen_at(&own, 5);
		for (int n = 0; n < THREADS; n++)
			threads[n] = begin(&calls[n], other, ACCEPT);
		take_away(other, by_dup);
		for (int n = 0; n < THREADS; n++) {
			ends[n] = socket(AF_INET, SOCK_STREAM, 0);
			MUST(connect(ends[n], (struct sockaddr *)&own, sizeof own) == 0);
			MUST(write(ends[n], "through", 7) == 7);
		}
		for (int n = 0; n < THREADS; n++) {
			pthread_join(threads[n], NULL);
			errno = calls[n].error;
			MUST(calls[n].result >= 0);
			MUST(read((int)calls[n].result, big, 100) == 7);
			close((int)calls[n].result);
		}
		/* With the last of them it has ended. */
		int late = socket(AF_INET, SOCK_STREAM, 0);
		MUST(connect(late, (struct sockaddr *)&own, sizeof own) == -1 && errno == ECONNREFUSED);
		close(late);
		for (int n = 0; n < THREADS; n++)
			close(ends[n]);
		if (by_dup)
			close(other);
	}
}

/* dup2 takes the number away from two threads that wait. */
static void taken_away_while_another_reads(void)
{
	int ends[2];
	struct call call, second;
	join(ends);
	pthread_t thread = begin(&call, ends[0], READ);
	pthread_t other = begin(&second, ends[0], READ);
	take_away(ends[0], 1);
	MUST(write(ends[1], "still", 5) == 5);
	/* Which of the two gets it is the stack's to say. */
	while (call.result + second.result == 0)
		usleep(200);
	MUST(write(ends[1], "there", 5) == 5);
	pthread_join(thread, NULL);
	pthread_join(other, NULL);
	MUST(call.result == 5 && second.result == 5);
	char byte;
	MUST(read(ends[1], &byte, 1) == 0);
	part(ends);
}

/* What poll and select have begun to wait for wakes them, and then the number is looked at. */
static void closed_while_another_polls(void)
{
	for (int kind = POLL; kind <= SELECT; kind++) {
		int ends[2];
		struct call call;
		join(ends);
		pthread_t thread = begin(&call, ends[0], kind);
		take_away(ends[0], 0);
		until_asleep(call.thread);
		MUST(write(ends[1], "x", 1) == 1);
		pthread_join(thread, NULL);
		errno = call.error;
		MUST(call.result == 1);
		MUST(call.told == (kind == POLL ? POLLNVAL : 1));
		close(ends[1]);
	}
}

/* The set has a socket, or a pipe alone; other threads wait in it, too. */
static void an_epoll_set_taken_away_while_others_wait(void)
{
	for (int manner = 0; manner < 4; manner++) {
		int by_dup = manner & 1, with_pipe = manner & 2;
		int ends[2], pipes[2];
		struct call call, second;
		struct epoll_event event = {.events = EPOLLIN, .data.u32 = 77};
		join(ends);
		MUST(pipe(pipes) == 0);
		int epoll = epoll_create1(0);
		MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, with_pipe ? pipes[0] : ends[0], &event) == 0);
		pthread_t thread = begin(&call, epoll, EPOLL_OF);
		pthread_t other = begin(&second, epoll, EPOLL_OF);
		take_away(epoll, by_dup);
		/* Another set may be where that one was. */
		int next = epoll_create1(0);
		MUST(write(with_pipe ? pipes[1] : ends[1], "x", 1) == 1);
		pthread_join(thread, NULL);
		pthread_join(other, NULL);
		errno = call.error;
		MUST(call.result == 1 && call.told == 77);
		errno = second.error;
		MUST(second.result == 1 && second.told == 77);
		MUST(epoll_wait(next, &event, 1, 0) == 0);
		close(next);
		if (by_dup)
			close(epoll);
		part(ends);
		part(pipes);
	}
}

/* What accept tells of the peer, and what becomes of the connection when it cannot. */
static void addresses_of_accept(void)
{
	const struct {
		int has_room, has_len, len, error;
	} tries[] = {
	    {1, 1, sizeof(struct sockaddr_in), 0},
	    {1, 1, 100, 0},
	    {1, 1, 4, 0},
	    {1, 1, 0, 0},
	    {0, 1, 100, 0},
	    {0, 1, -1, 0},
	    {0, 0, 0, 0},
	    {1, 0, 0, EFAULT},
	    {1, 1, -1, EINVAL},
	    {1, 1, INT_MIN, EINVAL},
	    {2, 1, 16, EFAULT},
	    {2, 1, 0, 0},
	};
	void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(nowhere != MAP_FAILED);
	for (size_t n = 0; n < sizeof tries / sizeof *tries; n++) {
		unsigned char room[128];
		memset(room, 0xee, sizeof room);
		socklen_t len = (socklen_t)tries[n].len;
		void *addr = tries[n].has_room == 2 ? nowhere : tries[n].has_room ? room : NULL;
		int end = socket(AF_INET, SOCK_STREAM, 0);
		MUST(connect(end, (struct sockaddr *)&place, sizeof place) == 0);
		int got = accept(listener, addr, tries[n].has_len ? &len : NULL);
		char byte;
		if (tries[n].error) {
			MUST(got == -1 && errno == tries[n].error);
			/* It was taken all the same, and is over. */
			MUST(read(end, &byte, 1) == 0);
			close(end);
			continue;
		}
		MUST(got >= 0);
		int told = addr ? (int)sizeof(struct sockaddr_in) : tries[n].len;
		MUST((int)len == told);
		int copied = tries[n].len < told ? tries[n].len : told;
		if (addr == room) {
			MUST(copied == 0 || room[0] == AF_INET);
			MUST(room[copied] == 0xee);
		}
		MUST(write(end, "x", 1) == 1 && read(got, &byte, 1) == 1);
		close(got);
		close(end);
	}
	munmap(nowhere, 4096);
}

static sem_t handled;

static void on_signal(int number)
{
	(void)number;
	sem_post(&handled);
}

static void *spliced(void *of)
{
	int *fds = of;
	fds[3] = gettid();
	fds[2] = (int)splice(fds[0], NULL, fds[1], NULL, 100, 0);
	return NULL;
}

static void a_handler_in_splice(void)
{
	int ends[2], pipes[2];
	join(ends);
	MUST(pipe(pipes) == 0);
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &action, NULL);
	sem_init(&handled, 0, 0);
	int fds[4] = {pipes[0], ends[0], 0, 0};
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, spliced, fds) == 0);
	while (!((volatile int *)fds)[3])
		usleep(100);
	until_asleep(fds[3]);
	pthread_kill(thread, SIGUSR1);
	sem_wait(&handled);
	MUST(write(pipes[1], "through", 7) == 7);
	pthread_join(thread, NULL);
	char room[8];
	MUST(fds[2] == 7 && recv(ends[1], room, 7, MSG_WAITALL) == 7 && memcmp(room, "through", 7) == 0);
	part(ends);
	part(pipes);
}

/* All that the process has open, also what a library keeps from the program. */
static int open_files(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;
	MUST(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static __thread sigjmp_buf before;

static void on_jump(int number)
{
	(void)number;
	siglongjmp(before, 1);
}

enum { JUMPS = 12 };

struct jumper {
	struct call call;
	struct sockaddr_in to;
	int pipe;
	sem_t about, landed, go;
	int open_files;
};

/* Is thrown out of its call again and again; then it goes on with something else until it may go. */
static void *jump(void *of)
{
	struct jumper *jumper = of;
	jumper->call.thread = gettid();
	for (volatile int n = 0; n < JUMPS; n++) {
		volatile int fd = -1;
		if (sigsetjmp(before, 1) == 0) {
			sem_post(&jumper->about);
			if (jumper->call.kind == CONNECT) {
				fd = socket(AF_INET, SOCK_STREAM, 0);
				connect(fd, (struct sockaddr *)&jumper->to, sizeof jumper->to);
			} else if (jumper->call.kind == SPLICE) {
				splice(jumper->pipe, NULL, jumper->call.fd, NULL, 100, 0);
			} else {
				wait_in(&jumper->call, jumper->call.fd);
			}
			MUST(!"it came back");
		}
		close(fd);
		/* The first one may open what the thread keeps; with the last one there is another thread. A library may keep what
		   one of them has left for another, but not what each has. */
		if (n == 0)
			jumper->open_files = open_files();
		if (n == JUMPS - 2)
			MUST(open_files() < jumper->open_files + JUMPS / 2);
		sem_post(&jumper->landed);
	}
	sem_wait(&jumper->go);
	return NULL;
}

/* Connections that nobody accepts, until there is no room for more. */
static void fill(struct sockaddr_in *to, int ends[], int count)
{
	for (int n = 0; n < count; n++) {
		ends[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		MUST(connect(ends[n], (struct sockaddr *)to, sizeof *to) == 0 || errno == EINPROGRESS);
	}
}

static void jumped_out_of(int kind, int flags)
{
	enum { FILL = 8 };
	int ends[2], others[2], pipes[2], full[FILL];
	struct jumper jumper = {.call = {.kind = kind}};
	struct call beside;
	pthread_t thread;
	struct sigaction action = {.sa_handler = on_jump, .sa_flags = flags};
	struct epoll_event event = {.events = EPOLLIN};
	sigaction(SIGUSR2, &action, NULL);
	sem_init(&jumper.about, 0, 0);
	sem_init(&jumper.landed, 0, 0);
	sem_init(&jumper.go, 0, 0);
	join(ends);
	join(others);
	MUST(pipe(pipes) == 0);
	jumper.pipe = pipes[0];
	int fd = ends[0];
	if (kind == ACCEPT)
		fd = listen_at(&jumper.to, 5);
	if (kind == EPOLL_OF) {
		fd = epoll_create1(0);
		MUST(epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &event) == 0);
	}
	if (kind == CONNECT) {
		fd = listen_at(&jumper.to, 0);
		fill(&jumper.to, full, FILL);
	}
	jumper.call.fd = fd;
	MUST(pthread_create(&thread, NULL, jump, &jumper) == 0);
	pthread_t other = 0;
	for (int n = 0; n < JUMPS; n++) {
		sem_wait(&jumper.about);
		until_asleep(jumper.call.thread);
		if (n == JUMPS - 1)
			other = begin(&beside, others[0], READ);
		MUST(pthread_kill(thread, SIGUSR2) == 0);
		sem_wait(&jumper.landed);
	}
	/* The thread waits for nothing now, but this one does. */
	MUST(write(others[1], "beside", 6) == 6);
	pthread_join(other, NULL);
	MUST(beside.result == 6);
	part(others);
	part(pipes);
	if (fd != ends[0])
		close(fd);
	if (kind == CONNECT)
		for (int n = 0; n < FILL; n++)
			close(full[n]);
	/* Nobody is left in a call on it: this is its end, with a FIN. */
	if (kind != WRITE) {
		MUST(write(ends[1], "x", 1) == 1 && read(ends[0], big, 1) == 1);
		MUST(close(ends[0]) == 0);
		MUST(read(ends[1], big, 1) == 0);
	} else {
		close(ends[0]);
		while (read(ends[1], big, sizeof big) > 0)
			;
	}
	close(ends[1]);
	sem_post(&jumper.go);
	pthread_join(thread, NULL);
}

static void jumped_out_of_calls(void)
{
	static const int kinds[] = {READ, WRITE, RECVMSG, ACCEPT, POLL, SELECT, EPOLL_OF, CONNECT, SPLICE};
	for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) {
		jumped_out_of(kinds[n], 0);
		jumped_out_of(kinds[n], SA_RESTART);
	}
}

static int writes_to = -1;

/* Does what the call waits for, and with errno what a careless one does. */
static void on_write(int number)
{
	(void)number;
	MUST(write(writes_to, "by a handler", 12) == 12);
	errno = ECHILD;
}

static void handlers_before_the_call_returns(void)
{
	for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
		int ends[2];
		struct call call;
		join(ends);
		struct sigaction action = {.sa_handler = on_write, .sa_flags = flags};
		sigaction(SIGUSR2, &action, NULL);
		writes_to = ends[1];
		pthread_t thread = begin(&call, ends[0], READ);
		pthread_kill(thread, SIGUSR2);
		pthread_join(thread, NULL);
		if (flags & SA_RESTART)
			MUST(call.result == 12);
		else
			MUST(call.result == -1 && call.error == EINTR && read(ends[0], big, 100) == 12);
		part(ends);
	}
}

/* Only the handler of the signal that came counts. */
static void restarted_beside_a_handler_that_does_not(void)
{
	int ends[2];
	struct call call;
	join(ends);
	sem_init(&handled, 0, 0);
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGUSR2, &action, NULL);
	action.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &action, NULL);
	pthread_t thread = begin(&call, ends[0], READ);
	pthread_kill(thread, SIGUSR1);
	sem_wait(&handled);
	until_asleep(call.thread);
	MUST(write(ends[1], "x", 1) == 1);
	pthread_join(thread, NULL);
	MUST(call.result == 1);
	part(ends);
}

enum { PPOLL, PSELECT, EPOLL_PWAIT };

struct masked {
	int kind, fd, epoll, result, error;
	_Atomic pid_t thread;
	int was_handled;
};

static _Atomic int masked_handled, masked_blocks;

static void on_masked(int number)
{
	sigset_t blocked;
	(void)number;
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	masked_blocks = sigismember(&blocked, SIGUSR1);
	masked_handled++;
}

/* The signal is blocked but for the length of the call. */
static void *make_masked(void *of)
{
	struct masked *masked = of;
	sigset_t blocked, open, after;
	fd_set set;
	FD_ZERO(&set);
	FD_SET(masked->fd, &set);
	struct pollfd polled = {masked->fd, POLLIN, 0};
	struct epoll_event event;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &blocked, &open);
	sigdelset(&open, SIGUSR2);
	sigaddset(&open, SIGUSR1);
	masked->thread = gettid();
	if (masked->kind == PPOLL)
		masked->result = ppoll(&polled, 1, NULL, &open);
	else if (masked->kind == PSELECT)
		masked->result = pselect(masked->fd + 1, &set, NULL, NULL, NULL, &open);
	else
		masked->result = epoll_pwait(masked->epoll, &event, 1, -1, &open);
	masked->error = errno;
	masked->was_handled = masked_handled;
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	MUST(sigismember(&after, SIGUSR2) && !sigismember(&after, SIGUSR1));
	return NULL;
}

static void let_in_by_the_calls_mask(void)
{
	struct sigaction action = {.sa_handler = on_masked};
	sigaction(SIGUSR2, &action, NULL);
	for (int kind = PPOLL; kind <= EPOLL_PWAIT; kind++) {
		int ends[2];
		pthread_t thread;
		struct epoll_event event = {.events = EPOLLIN};
		join(ends);
		struct masked masked = {.kind = kind, .fd = ends[0], .epoll = epoll_create1(0)};
		MUST(epoll_ctl(masked.epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
		masked_handled = masked_blocks = 0;
		MUST(pthread_create(&thread, NULL, make_masked, &masked) == 0);
		while (!masked.thread)
			usleep(100);
		until_asleep(masked.thread);
		pthread_kill(thread, SIGUSR2);
		pthread_join(thread, NULL);
		MUST(masked.result == -1 && masked.error == EINTR);
		MUST(masked.was_handled == 1 && masked_blocks);
		close(masked.epoll);
		part(ends);
	}
}

/* A handler that is to be called once ends the call as any other does. */
static void ended_by_a_handler_that_is_forgotten(void)
{
	int ends[2];
	struct call call;
	join(ends);
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
	sigaction(SIGUSR2, &action, NULL);
	sem_init(&handled, 0, 0);
	pthread_t thread = begin(&call, ends[0], READ);
	pthread_kill(thread, SIGUSR2);
	sem_wait(&handled);
	pthread_join(thread, NULL);
	errno = call.error;
	MUST(call.result == -1 && errno == EINTR);
	MUST(sigaction(SIGUSR2, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
	part(ends);
}

enum { SEND, SENDFILE, WAITALL, PEEK_ALL, MOVES };

static void *move(void *of)
{
	struct call *call = of;
	int file = memfd_create("much", 0);
	static char much[64 << 20];
	MUST(ftruncate(file, sizeof much) == 0);
	call->thread = gettid();
	if (call->kind == SEND)
		call->result = send(call->fd, much, sizeof much, 0);
	else if (call->kind == SENDFILE)
		call->result = sendfile(call->fd, file, NULL, sizeof much);
	else
		call->result = recv(call->fd, much, 8, MSG_WAITALL | (call->kind == PEEK_ALL ? MSG_PEEK : 0));
	call->error = errno;
	close(file);
	return NULL;
}

/* Linux restarts only what has moved nothing, SA_RESTART or not. */
static void not_restarted_when_bytes_were_moved(void)
{
	for (int kind = SEND; kind < MOVES; kind++) {
		int ends[2];
		pthread_t thread;
		join(ends);
		struct call call = {.fd = ends[0], .kind = kind};
		struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
		sigaction(SIGUSR2, &action, NULL);
		sem_init(&handled, 0, 0);
		MUST(write(ends[1], "abc", 3) == 3);
		MUST(pthread_create(&thread, NULL, move, &call) == 0);
		while (!call.thread)
			usleep(100);
		until_asleep(call.thread);
		pthread_kill(thread, SIGUSR2);
		sem_wait(&handled);
		pthread_join(thread, NULL);
		errno = call.error;
		if (kind == SEND || kind == SENDFILE)
			MUST(call.result > 0 && call.result < 64 << 20);
		else
			MUST(call.result == 3);
		part(ends);
	}
}

static void on_exit_of_thread(int number)
{
	(void)number;
	pthread_exit((void *)7);
}

/* A handler may end its thread, in the middle of the call. */
static void ended_in_a_handler(void)
{
	for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
		for (int kind = READ; kind < KINDS; kind++) {
			int ends[2];
			struct call call;
			void *left;
			join(ends);
			struct sigaction action = {.sa_handler = on_exit_of_thread, .sa_flags = flags};
			sigaction(SIGUSR2, &action, NULL);
			pthread_t thread = begin(&call, kind == ACCEPT ? listener : ends[0], kind);
			pthread_kill(thread, SIGUSR2);
			MUST(pthread_join(thread, &left) == 0);
			MUST(left == (void *)7 && call.cleaned);
			if (kind == READ) {
				thread = begin(&call, ends[0], READ);
				MUST(write(ends[1], "x", 1) == 1);
				pthread_join(thread, NULL);
				MUST(call.result == 1);
			}
			part(ends);
		}
	}
}

static int put_over[2];

static void on_dup(int number)
{
	(void)number;
	MUST(dup2(put_over[0], put_over[1]) == put_over[1]);
}

/* The call finds its descriptor anew. */
static void restarted_at_another_connection(void)
{
	int ends[2], others[2];
	struct call call;
	join(ends);
	join(others);
	struct sigaction action = {.sa_handler = on_dup, .sa_flags = SA_RESTART};
	sigaction(SIGUSR2, &action, NULL);
	put_over[0] = others[0];
	put_over[1] = ends[0];
	MUST(write(others[1], "another", 7) == 7);
	pthread_t thread = begin(&call, ends[0], READ);
	pthread_kill(thread, SIGUSR2);
	pthread_join(thread, NULL);
	errno = call.error;
	MUST(call.result == 7);
	MUST(read(ends[1], big, 1) == 0);
	part(ends);
	part(others);
}

enum { MANY = 200 };

static int counted, in_order;
static enum { RETURN, JUMP, FORK } then;

static void on_many(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	in_order += info->si_value.sival_int == counted;
	if (++counted == MANY)
		MUST(write(writes_to, "x", 1) == 1);
	if (then == JUMP)
		siglongjmp(before, 1);
	if (then == FORK && counted == 1) {
		int status;
		pid_t child = fork();
		if (child == 0) {
			sigset_t set;
			/* What waited was the parent's, and nothing is blocked but what this handler blocks. */
			MUST(sigpending(&set) == 0 && !sigismember(&set, number));
			sigprocmask(SIG_SETMASK, NULL, &set);
			MUST(sigismember(&set, number));
			sigemptyset(&set);
			sigprocmask(SIG_SETMASK, &set, NULL);
			(void)!read(-1, big, 1);
			_exit(counted != 1);
		}
		MUST(waitpid(child, &status, 0) == child && status == 0);
	}
}

/* Real-time signals are counted and keep their order, also those that come all at once: of a process that was stopped. */
static void many_at(int flags)
{
	struct sigaction action = {.sa_sigaction = on_many, .sa_flags = flags | SA_SIGINFO};
	int ready[2], status;
	MUST(pipe(ready) == 0);
	pid_t child = fork();
	if (child == 0) {
		int ends[2];
		alarm(20);
		join(ends);
		writes_to = ends[1];
		counted = in_order = 0;
		sigaction(SIGRTMIN + 1, &action, NULL);
		MUST(write(ready[1], "x", 1) == 1);
		sigsetjmp(before, 1);
		ssize_t n;
		do
			n = read(ends[0], big, 1);
		while (n < 0 && errno == EINTR);
		MUST(n == 1);
		MUST(in_order == MANY);
		_exit(0);
	}
	MUST(read(ready[0], big, 1) == 1);
	until_asleep(child);
	MUST(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	for (int n = 0; n < MANY; n++)
		MUST(sigqueue(child, SIGRTMIN + 1, (union sigval){.sival_int = n}) == 0);
	MUST(kill(child, SIGCONT) == 0);
	MUST(waitpid(child, &status, 0) == child && status == 0);
	part(ready);
}

static void many_at_once(void)
{
	for (then = RETURN; then <= FORK; then++) {
		many_at(0);
		many_at(SA_RESTART);
	}
}

static void thrown_away(void)
{
	int ends[2];
	char room[8];
	join(ends);
	MUST(write(ends[0], "0123456789", 10) == 10);
	MUST(recv(ends[1], NULL, 6, MSG_TRUNC | MSG_WAITALL) == 6);
	MUST(recv(ends[1], room, 8, 0) == 4 && memcmp(room, "6789", 4) == 0);
	MUST(recv(ends[1], NULL, 6, MSG_TRUNC | MSG_DONTWAIT) == -1 && errno == EAGAIN);
	part(ends);
}

static void bound_by_the_c_library(void)
{
	struct sockaddr_in mine = {.sin_family = AF_INET}, seen;
	socklen_t len = sizeof seen;
	if (geteuid() != 0)
		return;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	mine.sin_addr.s_addr = place.sin_addr.s_addr;
	MUST(bindresvport(fd, &mine) == 0);
	MUST(connect(fd, (struct sockaddr *)&place, sizeof place) == 0);
	MUST(getsockname(fd, (struct sockaddr *)&seen, &len) == 0);
	MUST(ntohs(seen.sin_port) < 1024 && seen.sin_port != 0);
	int other = accept(listener, (struct sockaddr *)&seen, &len);
	MUST(other >= 0 && ntohs(seen.sin_port) < 1024);
	close(other);
	close(fd);
	/* The same by another process that has the descriptor. */
	fd = socket(AF_INET, SOCK_STREAM, 0);
	pid_t pid = vfork();
	if (pid == 0) {
		struct sockaddr_in theirs = {.sin_family = AF_INET, .sin_port = htons(39123)};
		theirs.sin_addr.s_addr = place.sin_addr.s_addr;
		_exit(bind(fd, (struct sockaddr *)&theirs, sizeof theirs) != 0);
	}
	int status;
	MUST(waitpid(pid, &status, 0) == pid && status == 0);
	MUST(connect(fd, (struct sockaddr *)&place, sizeof place) == 0);
	MUST(getsockname(fd, (struct sockaddr *)&seen, &len) == 0 && seen.sin_port == htons(39123));
	close(accept(listener, NULL, NULL));
	close(fd);
}

static void one_connection(void)
{
	int ends[2];
	char byte;
	join(ends);
	MUST(write(ends[0], "x", 1) == 1 && read(ends[1], &byte, 1) == 1);
	part(ends);
}

static void *nothing(void *unused)
{
	return unused;
}

static void on_the_smallest_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	MUST(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
	errno = pthread_create(&thread, &attributes, nothing, NULL);
	MUST(errno == 0);
	pthread_join(thread, NULL);
}

static long locked(const char *what)
{
	char text[4096];
	int file = open("/proc/self/status", O_RDONLY);
	ssize_t n = read(file, text, sizeof text - 1);
	close(file);
	text[n > 0 ? n : 0] = 0;
	char *at = strstr(text, what);
	return at ? atol(at + strlen(what)) : -1;
}

static void few_bytes_in_files(void)
{
	struct rlimit limit = {16 << 10, 16 << 10};
	setrlimit(RLIMIT_FSIZE, &limit);
}

static double seconds(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The peer takes nothing more: what is left cannot be acknowledged. */
static void lingered(void)
{
	int ends[2];
	join(ends);
	struct linger linger = {1, 1};
	MUST(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	for (int idle = 0; idle < 20;) {
		if (send(ends[0], big, sizeof big, MSG_NOSIGNAL) < 0) {
			MUST(errno == EAGAIN);
			idle++;
			usleep(5000);
		}
	}
	double begun = seconds();
	MUST(close(ends[0]) == 0);
	MUST(seconds() - begun > 0.9);
	close(ends[1]);
	/* With nothing left it is over at once, however long the time. */
	join(ends);
	linger.l_linger = 30;
	MUST(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	MUST(write(ends[0], "all", 3) == 3);
	begun = seconds();
	MUST(close(ends[0]) == 0);
	MUST(seconds() - begun < 10);
	char room[8];
	MUST(recv(ends[1], room, 8, MSG_WAITALL) == 3);
	close(ends[1]);
}

int main(int count, char **words)
{
	const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
	    {"cancelled", cancelled},
	    {"not cancelled", not_cancelled_while_it_does_not_let_itself},
	    {"shut", shut_while_another_waits},
	    {"closed", closed_while_another_waits},
	    {"taken away", taken_away_while_another_reads},
	    {"closed in connect", closed_while_another_connects},
	    {"watched in connect", watched_while_another_connects},
	    {"closed in accept", a_listener_closed_while_others_accept},
	    {"closed in poll", closed_while_another_polls},
	    {"set taken away", an_epoll_set_taken_away_while_others_wait},
	    {"addresses", addresses_of_accept},
	    {"jumped", jumped_out_of_calls},
	    {"handlers", handlers_before_the_call_returns},
	    {"restarted", restarted_beside_a_handler_that_does_not},
	    {"forgotten", ended_by_a_handler_that_is_forgotten},
	    {"moved", not_restarted_when_bytes_were_moved},
	    {"ended", ended_in_a_handler},
	    {"another", restarted_at_another_connection},
	    {"many", many_at_once},
	    {"masks", let_in_by_the_calls_mask},
	    {"splice", a_handler_in_splice},
	    {"thrown away", thrown_away},
	    {"bound", bound_by_the_c_library},
	    {"stack", on_the_smallest_stack},
	    {"lingered", lingered},
	};
	if (count < 3)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	place.sin_family = AF_INET;
	place.sin_port = htons((uint16_t)atoi(words[2]));
	inet_pton(AF_INET, words[1], &place.sin_addr);
	const char *only = count > 3 ? words[3] : "";
	int is_limited = !strcmp(only, "files") || !strcmp(only, "locked");
	/* Before the first socket. */
	if (!strcmp(only, "files"))
		few_bytes_in_files();
	if (!strcmp(only, "locked"))
		MUST(mlockall(MCL_FUTURE) == 0);
	listen_there(100);
	if (is_limited) {
		one_connection();
		long kib = locked("VmLck:");
		if (kib > 100 << 10) {
			printf("%ld KiB are locked\n", kib);
			return 1;
		}
		printf("same\n");
		return 0;
	}
	for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
		if (*only && strcmp(only, cases[n].name) != 0)
			continue;
		now = cases[n].name;
		cases[n].run();
	}
	printf("same\n");
	return 0;
}
