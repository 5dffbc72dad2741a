/* A server that has its sockets from the C library and waits for them by system-call instructions of its own, as Bun and
 * Rust programs on rustix do. With a number: answers so many connections. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PORT 7303

#ifdef FROM_STACK
/* One function for all calls, as programs have it that are built without optimisation: the number comes from the stack. */
static long call(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static long wait_here(int set, struct epoll_event *events, int count)
{
	return call(SYS_epoll_pwait, set, (long)events, count, -1, 0, 8);
}
#else
/* In one piece with its number, as compilers have it. */
static long wait_here(int set, struct epoll_event *events, int count)
{
	long result;
	register long timeout __asm__("r10") = -1;
	register void *mask __asm__("r8") = NULL;
	register long size __asm__("r9") = 8;

	__asm__ volatile("movl %1, %%eax\n\tsyscall"
			 : "=&a"(result)
			 : "i"(SYS_epoll_pwait), "D"((long)set), "S"(events), "d"((long)count), "r"(timeout), "r"(mask),
			   "r"(size)
			 : "rcx", "r11", "memory");
	return result;
}
#endif

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void watch(int set, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

int main(int argc, char **argv)
{
	int left = argc > 1 ? atoi(argv[1]) : 0, on = 1, set = epoll_create1(EPOLL_CLOEXEC);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in local = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = { htonl(INADDR_LOOPBACK) } };

	check(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0, "setsockopt");
	check(bind(listener, (struct sockaddr *)&local, sizeof(local)) == 0, "bind");
	check(listen(listener, 10) == 0, "listen");
	watch(set, listener);
	printf("listening at descriptor %d\n", listener);
	fflush(stdout);
	while (left > 0) {
		struct epoll_event event;
		char bytes[100];
		ssize_t len;

		if (wait_here(set, &event, 1) != 1)
			return 1;
		if (event.data.fd == listener) {
			watch(set, accept(listener, NULL, NULL));
			continue;
		}
		len = read(event.data.fd, bytes, sizeof(bytes));
		if (len > 0) {
			check(write(event.data.fd, bytes, len) == len, "write");
		} else {
			close(event.data.fd);
			left--;
		}
	}
	return 0;
}
